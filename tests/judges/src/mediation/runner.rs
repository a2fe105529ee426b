//! Runs one conversation: sends its packets, and waits for all due replies where a step says so.

use std::collections::VecDeque;
use std::time::Duration;

use super::conversation::{Conversation, Message, Step, with_tokens};
use super::world::World;
use pgpalisade_test_servers::wire::{self, Batch, Endpoint, Wire};

/// Wait for a reply that the model of due replies expects wrongly.
const SURPRISE: Duration = Duration::from_millis(60);
/// After this time without a message the session counts as silent.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct ReportedError {
    pub step: usize,
    pub sqlstate: String,
    pub words: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The session answered to the end.
    Answered,
    Closed,
    Silent,
}

#[derive(Clone, Debug)]
pub struct Heard {
    pub errors: Vec<ReportedError>,
    pub said: Vec<wire::Message>,
    pub end: End,
}

impl Heard {
    pub fn shows(&self, text: &str) -> bool {
        let mut rows = self
            .said
            .iter()
            .filter(|message| matches!(message.tag, b'D' | b'd'));
        rows.any(|row| String::from_utf8_lossy(&row.body).contains(text))
    }
}

pub fn run(
    world: &World,
    to: &(Endpoint, String),
    conversation: &Conversation,
    number: u64,
    declares: &mut dyn FnMut(&str),
) -> Heard {
    let mut client = Client::new(to, conversation, number);
    let mut batch = Batch::new();
    for (at, step) in conversation.steps.iter().enumerate() {
        if client.heard.end == End::Closed {
            break;
        }
        if let Step::Say(message) = step {
            batch = message.onto(batch, number, &|function| {
                world.oid(conversation.database, function)
            });
            client.expect(at, message);
            continue;
        }
        client.wire.send(&std::mem::take(&mut batch));
        match step {
            Step::Wait => client.settle(),
            Step::Declare(token) => declares(&told(token, number)),
            Step::Say(_) | Step::Send => {}
        }
    }
    client.wire.send(&batch);
    client.finish();
    client.heard
}

fn told(text: &str, number: u64) -> String {
    String::from_utf8_lossy(&with_tokens(text.as_bytes(), number)).into_owned()
}

struct Client {
    wire: Wire,
    pending: VecDeque<(usize, Message)>,
    /// PostgreSQL waits for the data of a COPY.
    copying: bool,
    heard: Heard,
}

impl Client {
    fn new(
        (endpoint, database): &(Endpoint, String),
        conversation: &Conversation,
        number: u64,
    ) -> Self {
        let token = conversation
            .session
            .token()
            .map(|token| told(token, number));
        let mut parameters = vec![
            ("user", conversation.session.user()),
            ("database", database.as_str()),
        ];
        parameters.extend(token.as_deref().map(|token| ("fencing.token", token)));
        parameters.extend(
            conversation
                .startup
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str())),
        );
        let mut wire = Wire::connect(endpoint);
        wire.set_patience(PATIENCE);
        wire.startup(wire::PROTOCOL_3_0, &parameters);
        let ready = wire
            .until_ready()
            .last()
            .is_some_and(|last| last.tag == b'Z');
        let end = if ready { End::Answered } else { End::Closed };
        if let (true, Some(token)) = (ready, conversation.session.first_token()) {
            wire.query(&format!("SET fencing.token = '{}'", told(token, number)));
        }
        Self {
            wire,
            pending: VecDeque::new(),
            copying: false,
            heard: Heard {
                errors: Vec::new(),
                said: Vec::new(),
                end,
            },
        }
    }

    fn expect(&mut self, at: usize, message: &Message) {
        match message {
            Message::CopyData(_) => {}
            Message::CopyDone | Message::CopyFail => self.copying = false,
            message => self.pending.push_back((at, message.clone())),
        }
    }

    fn settle(&mut self) {
        self.wire.set_patience(SURPRISE);
        while self.must_come() {
            match self.wire.try_read() {
                Ok(message) => self.hear(&message),
                // The server skipped or ignored a message unexpectedly.
                Err(_) => break,
            }
        }
        self.wire.set_patience(PATIENCE);
    }

    /// Whether a reply is due now, rather than held back until a Sync or Flush.
    fn must_come(&mut self) -> bool {
        while matches!(self.pending.front(), Some((_, Message::Flush))) {
            self.pending.pop_front();
        }
        let flushed = |message: &Message| {
            message.ends_with_ready() || matches!(message, Message::Flush | Message::Malformed(..))
        };
        self.heard.end == End::Answered
            && !self.copying
            && self.pending.iter().any(|(_, message)| flushed(message))
    }

    fn hear(&mut self, message: &wire::Message) {
        self.heard.said.push(message.clone());
        let front = self.pending.front().map(|(_, front)| front);
        match message.tag {
            0 => self.heard.end = End::Closed,
            b'E' => self.hear_error(message),
            b'Z' => {
                self.copying = false;
                while let Some((_, front)) = self.pending.pop_front() {
                    if front.ends_with_ready() {
                        break;
                    }
                }
            }
            b'G' => self.copying = true,
            b'1' | b'2' | b'3' | b'C' | b'I' | b's' | b'T' | b'n' => {
                let answers = match front {
                    Some(Message::Parse(..)) => message.tag == b'1',
                    Some(Message::Bind(..)) => message.tag == b'2',
                    Some(Message::Close(..)) => message.tag == b'3',
                    Some(Message::Describe(..)) => matches!(message.tag, b'T' | b'n'),
                    Some(Message::Execute(..)) => matches!(message.tag, b'C' | b'I' | b's'),
                    _ => false,
                };
                if answers {
                    self.pending.pop_front();
                }
            }
            _ => {}
        }
    }

    fn hear_error(&mut self, message: &wire::Message) {
        while matches!(self.pending.front(), Some((_, Message::Flush))) {
            self.pending.pop_front();
        }
        self.copying = false;
        let step = self.pending.front().map_or(usize::MAX, |(at, _)| *at);
        let words = [b'M', b'D']
            .map(|field| message.field(field).unwrap_or_default())
            .join(" ");
        self.heard.errors.push(ReportedError {
            step,
            sqlstate: message.sqlstate(),
            words,
        });
        let in_pipeline = self
            .pending
            .front()
            .is_some_and(|(_, front)| !front.ends_with_ready());
        if in_pipeline {
            while self
                .pending
                .front()
                .is_some_and(|(_, front)| !is_sync(front))
            {
                self.pending.pop_front();
            }
        }
    }

    /// Ends everything open, and reads up to a unique reply.
    fn finish(&mut self) {
        if self.heard.end == End::Answered {
            let end = Batch::new()
                .copy_fail("the end")
                .sync()
                .query("ROLLBACK")
                .query("SELECT 'the end'");
            self.wire.send(&end);
        }
        while self.heard.end == End::Answered {
            match self.wire.try_read() {
                Ok(message) if message.tag == b'D' && message.row() == ["the end"] => break,
                Ok(message) => self.hear(&message),
                Err(_) => self.heard.end = End::Silent,
            }
        }
        self.wire.send(&Batch::new().terminate());
        self.wire.shut_down_writing();
        while self.heard.end != End::Silent
            && self
                .wire
                .try_read()
                .is_ok_and(|message| !message.is_closed())
        {}
    }
}

const fn is_sync(message: &Message) -> bool {
    matches!(message, Message::Sync | Message::Malformed(b'S', _))
}
