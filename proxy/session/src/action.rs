//! The session's answers to its driver: what to do with each message.

use pgpalisade_policies::TextEncoding;

use super::endings::Ending;
use super::in_flight::Request;
use super::read_only::AccessChange;
use super::token_request::TokenRequest;
use crate::fence::Permit;
use crate::fence::traceparent::Traceparent;
use crate::rejection::Enforcement;
use crate::rejection::Rejection;

/// Decision on a frontend message.
#[derive(Debug)]
pub enum Action {
    /// Send it, including the part that has yet to arrive.
    Forward(Permit),
    /// Drop it: it was answered, or the server would discard it.
    Discard,
    /// Wait for a few more bytes.
    AwaitFront,
    /// Wait for the whole message, if there is room for it.
    AwaitWhole,
    /// Carry this out; the message is then decided again.
    Need(Prerequisite),
    /// The client ends the session.
    Terminate,
    /// Send what waits for the client and end the session.
    End(Box<Ending>),
}

// One is returned for each message: up to this size, in registers.
const _: () = assert!(size_of::<Action>() <= 16 && size_of::<Disposition>() <= 16);

/// Step before a message can be decided or sent.
#[derive(Debug)]
pub enum Prerequisite {
    /// Wait until everything sent is answered.
    Replies,
    /// Classify the text on another thread.
    Verdict(Box<Unread>),
    /// Ask the authority for the last takeovers of [the session's scopes](super::Session::scopes).
    History,
    /// Set the access mode.
    Access(AccessChange),
    /// Declare these tokens. An open guarded transaction is made read-write first: if it is too late for that,
    /// nothing was declared and no mark raised.
    Tokens(Box<TokenRequest>, Option<AccessChange>),
}

impl From<Ending> for Action {
    #[cold]
    fn from(ending: Ending) -> Self {
        Self::End(Box::new(ending))
    }
}

impl From<Ending> for Disposition {
    #[cold]
    fn from(ending: Ending) -> Self {
        Self::End(Box::new(ending))
    }
}

/// Text that takes long to classify.
#[derive(Debug)]
pub struct Unread {
    /// The text.
    pub text: Vec<u8>,
    /// Encoding in which the server reads it.
    pub encoding: TextEncoding,
}

/// Decision on a backend message.
#[derive(Debug)]
pub enum Disposition {
    /// Relay it to the client.
    Relay,
    /// Drop it: it answers the proxy, or was replaced.
    Drop,
    /// An administrator ended the session. [`Session::on_terminated`](super::Session::on_terminated) says whether for
    /// a takeover.
    Terminated,
    /// Drop it, send what waits for the client, and end the session.
    End(Box<Ending>),
}

/// A refusal for the record.
#[derive(Debug)]
pub struct RecordedRefusal {
    /// Error that the client got, or would have got.
    pub rejection: Rejection,
    /// Whether it was enforced.
    pub enforcement: Enforcement,
    /// Refused statement.
    pub statement: Option<JudgedText>,
}

/// Class and text of a statement, for the record of its refusal.
#[derive(Debug, Clone)]
pub struct JudgedText {
    /// Name of the class in the policy.
    pub class: &'static str,
    /// Beginning of the text.
    pub text: Vec<u8>,
    /// Trace that the text names as its own.
    pub traceparent: Option<Traceparent>,
}

/// Kind of a refused message, which decides how PostgreSQL would answer an error in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Query, FunctionCall: an error and ReadyForQuery.
    Whole,
    /// Execute: an error, then everything up to Sync is skipped.
    InPipeline,
    /// CopyData, CopyDone: the COPY fails.
    CopyData,
}

impl Refused {
    pub(super) const fn of(request: Request) -> Self {
        match request {
            Request::Execute => Self::InPipeline,
            _ => Self::Whole,
        }
    }
}

/// A message that waits for its tokens.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) refused: Refused,
    pub(super) statement: Option<JudgedText>,
}
