//! A client that bounds every wait and never panics because of a reply.

use std::io;
use std::time::Duration;

use pgpalisade_test_servers::wire::{Batch, Endpoint, Message, PROTOCOL_3_0, Wire};

use super::history::Answer;

/// Of Linux.
const PROCESSES_MAX: u32 = 1 << 22;

#[derive(Clone, Debug)]
pub struct QueryResult {
    pub answer: Answer,
    pub rows: Vec<Vec<String>>,
}

impl QueryResult {
    fn without_rows(answer: Answer) -> Self {
        Self {
            answer,
            rows: Vec::new(),
        }
    }

    pub fn value(&self) -> Option<&str> {
        Some(self.rows.first()?.first()?.as_str())
    }
}

/// Possibly broken.
#[derive(Debug)]
pub struct Client {
    wire: Wire,
}

impl Client {
    /// Starts a session as superuser. Never fails with [`Answer::Ok`].
    pub fn login(
        endpoint: &Endpoint,
        more: &[(&str, &str)],
        patience: Duration,
    ) -> Result<Self, Answer> {
        let wire = Wire::try_connect(endpoint).map_err(|error| of_error(&error))?;
        let mut client = Self { wire };
        client.set_patience(patience);
        let parameters = [&[("user", "postgres")], more].concat();
        client.wire.startup(PROTOCOL_3_0, &parameters);
        match client.read(1).answer {
            Answer::Ok => Ok(client),
            refused => Err(refused),
        }
    }

    pub fn set_patience(&mut self, patience: Duration) {
        self.wire.set_patience(patience);
        self.wire.set_write_patience(patience);
    }

    /// `None` if the server connection changes between transactions: then the number is that of a cancel key.
    pub fn backend_pid(&self) -> Option<u32> {
        Some(self.wire.backend_pid()).filter(|pid| *pid <= PROCESSES_MAX)
    }

    /// Sends messages and reads until `ready` ReadyForQuery have come, or an error and the next ReadyForQuery.
    pub fn exchange(&mut self, batch: &Batch, ready: usize) -> QueryResult {
        match self.wire.try_send_bytes(batch.bytes()) {
            // The reason for the end may still be readable.
            Ok(()) | Err(_) => self.read(ready),
        }
    }

    /// Sends messages and reads nothing.
    pub fn send(&mut self, batch: &Batch) {
        self.wire.send(batch);
    }

    pub fn local_port(&self) -> Option<u16> {
        self.wire.local_port()
    }

    pub fn query(&mut self, sql: &str) -> QueryResult {
        self.exchange(&Batch::new().query(sql), 1)
    }

    fn read(&mut self, ready: usize) -> QueryResult {
        let mut rows = Vec::new();
        let mut error: Option<Answer> = None;
        let mut left = ready;
        loop {
            let message = match self.wire.try_read() {
                Ok(message) => message,
                Err(failed) => {
                    let answer = error.unwrap_or_else(|| of_error(&failed));
                    return QueryResult::without_rows(answer);
                }
            };
            match message.tag {
                _ if message.is_closed() => {
                    return QueryResult::without_rows(error.unwrap_or(Answer::Lost));
                }
                b'E' => error = error.or_else(|| Some(of_message(&message))),
                b'D' => rows.push(message.row()),
                b'Z' => {
                    left -= 1;
                    if let Some(error) = error {
                        return QueryResult::without_rows(error);
                    }
                    if left == 0 {
                        let answer = Answer::Ok;
                        return QueryResult { answer, rows };
                    }
                }
                _ => {}
            }
        }
    }
}

fn of_message(message: &Message) -> Answer {
    Answer::Error(message.sqlstate())
}

fn of_error(error: &io::Error) -> Answer {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Answer::Silent,
        _ => Answer::Lost,
    }
}
