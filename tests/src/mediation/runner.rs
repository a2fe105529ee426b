//! Runs one conversation: sends its packets, and waits where it says so for all that must come.

use std::collections::VecDeque;
use std::time::Duration;

use super::conversation::{Conversation, Message, Step, with_tokens};
use super::world::World;
use crate::wire::{self, Batch, Endpoint, Wire};

/// Where the model of what must come is wrong, so long is waited.
const SURPRISE: Duration = Duration::from_millis(60);
/// Something must come within this, or the session no longer answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// An error that the client was told.
#[derive(Clone, Debug)]
pub struct Told {
    /// The step of the message that it answers.
    pub step: usize,
    /// Its SQLSTATE.
    pub sqlstate: String,
    /// Its message and detail.
    pub words: String,
}

/// How a conversation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The session answered to the end.
    Answered,
    /// It was ended from the other side.
    Closed,
    /// It no longer answers.
    Silent,
}

/// What came of a conversation.
#[derive(Clone, Debug)]
pub struct Heard {
    /// In their order.
    pub errors: Vec<Told>,
    /// All of what the server has said.
    pub said: Vec<wire::Message>,
    /// How it ended.
    pub end: End,
}

impl Heard {
    /// Whether the client was shown a row with this text.
    pub fn shows(&self, text: &str) -> bool {
        let mut rows = self
            .said
            .iter()
            .filter(|message| matches!(message.tag, b'D' | b'd'));
        rows.any(|row| String::from_utf8_lossy(&row.body).contains(text))
    }
}

/// Runs a conversation to its end. `number` stands for its tokens; `declares` does what [`Step::Declare`] says.
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
    /// Sent and not answered, with the numbers of the steps.
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

    /// Reads all that must come of what was sent.
    fn settle(&mut self) {
        self.wire.set_patience(SURPRISE);
        while self.must_come() {
            match self.wire.try_read() {
                Ok(message) => self.hear(&message),
                // Something was skipped or ignored that is not known here.
                Err(_) => break,
            }
        }
        self.wire.set_patience(PATIENCE);
    }

    /// Whether the server has something to say now: what is held back until a Sync or Flush has not.
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
        self.heard.errors.push(Told {
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

    /// Ends whatever is open, and reads to an answer that nothing else gives.
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
