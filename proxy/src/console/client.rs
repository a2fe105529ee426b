//! The conversation with an operator, by the simple protocol.

use std::io;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use pgpalisade_server::message_socket::{Message, MessageError, MessageSocket};
use pgpalisade_wire::WireError;
use pgpalisade_wire::backend::TransactionStatus;
use pgpalisade_wire::encode::{
    self, CommandComplete, EmptyQueryResponse, ErrorResponse, ReadyForQuery, Severity,
};
use pgpalisade_wire::frontend::{FrontendTag, read_query};

use super::command::Command;
use super::login::Operator;
use super::table::{Row, data_row};
use super::{Console, ConsoleError};

/// An idle client gives its place to others. psql reconnects on its own.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// PostgreSQL's own words.
const IDLE: &str = "terminating connection due to idle-session timeout";

/// Rows are sent in pieces of about so many bytes.
const SEND_AT: usize = 64 * 1024;

pub(super) struct ConsoleClient {
    console: Arc<Console>,
    operator: Operator,
    link: MessageSocket,
    /// A message of the extended protocol was refused, so the others up to Sync are skipped.
    has_failed: bool,
}

/// Failures of a message.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Undone {
    /// The client receives the error, and continues.
    Failed(#[from] ConsoleError),
    /// The connection has ended.
    Ended(MessageError),
}

impl From<WireError> for Undone {
    fn from(error: WireError) -> Self {
        Self::Failed(ConsoleError::new("08P01", error.to_string()))
    }
}

impl From<io::Error> for Undone {
    fn from(error: io::Error) -> Self {
        Self::Ended(error.into())
    }
}

impl ConsoleClient {
    pub(super) fn new(console: Arc<Console>, operator: Operator, link: MessageSocket) -> Self {
        Self {
            console,
            operator,
            link,
            has_failed: false,
        }
    }

    pub(super) async fn run(mut self) {
        let ended = loop {
            let message = match self.link.message_within(IDLE_MAX).await {
                Ok(Some(message)) => message,
                Ok(None) => return,
                Err(error) => break error,
            };
            match self.on_message(message).await {
                Ok(Continue(())) => {}
                Ok(Break(())) => return,
                Err(error) => break error,
            }
        };
        tracing::debug!(user = self.operator.user, error = %ended, "a connection to the console ended");
        if let Some(failure) = farewell(&ended) {
            failure.put(Severity::Fatal, &mut self.link.out);
            self.link.close().await;
        }
    }

    async fn on_message(&mut self, message: Message) -> Result<ControlFlow<()>, MessageError> {
        match FrontendTag::from_byte(message.tag)? {
            FrontendTag::Terminate => return Ok(Break(())),
            FrontendTag::Sync => {
                self.has_failed = false;
                self.ready().await?;
            }
            _ if self.has_failed => {}
            FrontendTag::Query => {
                match self.on_query(message.body).await {
                    Err(Undone::Failed(failure)) => {
                        failure.put(Severity::Error, &mut self.link.out)
                    }
                    Err(Undone::Ended(error)) => return Err(error),
                    Ok(()) => {}
                }
                self.ready().await?;
            }
            FrontendTag::FunctionCall => {
                let failure = ConsoleError::new("0A000", "the console has no functions");
                failure.put(Severity::Error, &mut self.link.out);
                self.ready().await?;
            }
            FrontendTag::Parse
            | FrontendTag::Bind
            | FrontendTag::Describe
            | FrontendTag::Execute
            | FrontendTag::Close => {
                self.has_failed = true;
                let failure = ConsoleError::new("0A000", "the console has no extended protocol");
                let failure = failure.hint("Have the driver send simple queries, as psql does.");
                failure.put(Severity::Error, &mut self.link.out);
                // A client that sends Flush after it waits for this.
                self.link.flush().await?;
            }
            FrontendTag::Flush => self.link.flush().await?,
            // As PostgreSQL outside of COPY.
            FrontendTag::CopyData | FrontendTag::CopyDone | FrontendTag::CopyFail => {}
            FrontendTag::Password => return Err(WireError::UnknownFrontendTag(message.tag).into()),
        }
        Ok(Continue(()))
    }

    async fn ready(&mut self) -> io::Result<()> {
        self.put(&ReadyForQuery::new(TransactionStatus::Idle.into()));
        self.link.flush().await
    }

    fn put(&mut self, message: &impl encode::Message) {
        encode::put(&mut self.link.out, message);
    }

    async fn on_query(&mut self, body: BytesMut) -> Result<(), Undone> {
        let commands = Command::parse_all(&read_query(body)?.query)?;
        if commands.is_empty() {
            self.put(&EmptyQueryResponse::new());
        }
        for command in commands {
            if let Command::Show(table) = command {
                let rows: Vec<Row> = table.read(&self.console.facts, Iterator::collect).await?;
                self.put(&table.description());
                for row in rows {
                    self.put(&data_row(row));
                    if self.link.out.len() >= SEND_AT {
                        self.link.flush().await?;
                    }
                }
            } else {
                self.console.obey(command, &self.operator).await?;
            }
            self.put(&CommandComplete::new(command.tag().into()));
        }
        Ok(())
    }
}

/// Last error, for a client that can still receive one.
fn farewell(ended: &MessageError) -> Option<ConsoleError> {
    match ended {
        MessageError::Wire(error) => Some(ConsoleError::new("08P01", error.to_string())),
        MessageError::Idle => Some(ConsoleError::new("57P05", IDLE)),
        MessageError::Io(_) => None,
    }
}

impl ConsoleError {
    pub(super) fn put(&self, severity: Severity, out: &mut BytesMut) {
        let fields = encode::ErrorFields {
            severity,
            sqlstate: self.sqlstate,
            message: &self.message,
            detail: "",
            hint: self.hint,
        };
        encode::put(out, &ErrorResponse::from(&fields));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hears_why_it_is_over() {
        for (ended, sqlstate) in [
            (MessageError::Idle, Some("57P05")),
            (WireError::UnknownFrontendTag(b'p').into(), Some("08P01")),
            (io::Error::from(io::ErrorKind::BrokenPipe).into(), None),
        ] {
            assert_eq!(farewell(&ended).map(|told| told.sqlstate), sqlstate);
        }
    }
}
