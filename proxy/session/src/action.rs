//! What the session answers to a message: what its driver is to do with it.

use pgpalisade_policies::TextEncoding;

use super::endings::Ending;
use super::in_flight::Request;
use super::read_only::Adjustment;
use super::tokens::Wanted;
use crate::fence::Permit;
use crate::fence::traceparent::Traceparent;
use crate::rejection::Enforcement;
use crate::rejection::Rejection;

/// What is to be done with a message of the client.
#[derive(Debug)]
pub enum Action {
    /// Send it, also what has yet to arrive of it.
    Forward(Permit),
    /// Drop it: it was answered, or the server would throw it away.
    Discard,
    /// More of it must arrive: a few bytes.
    AwaitFront,
    /// All of it must arrive, where there is room for that.
    AwaitWhole,
    /// This must happen first; then the message is looked at again.
    Need(Prerequisite),
    /// The client says goodbye.
    Terminate,
    /// What waits for the client is sent, and the session ends.
    End(Box<Ending>),
}

// They are handed over for each message: in registers, up to this size.
const _: () = assert!(size_of::<Action>() <= 16 && size_of::<Disposition>() <= 16);

/// What must happen before a message can be decided or sent.
#[derive(Debug)]
pub enum Prerequisite {
    /// All that was sent is answered.
    Replies,
    /// The text is classified, on another thread.
    Verdict(Box<Unread>),
    /// The authority has told how the last takeovers of [the session's scopes](super::Session::scopes) went.
    History,
    /// The proxy has stated what transactions may do.
    Access(Adjustment),
    /// These tokens are accepted for the session. An open transaction that is guarded is lifted first: should it be too
    /// late for that, nothing was declared and no mark was raised.
    Tokens(Box<Wanted>, Option<Adjustment>),
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

/// A text that is long to read.
#[derive(Debug)]
pub struct Unread {
    /// The text.
    pub text: Vec<u8>,
    /// How the server reads it.
    pub encoding: TextEncoding,
}

/// What is to be done with a message of the server.
#[derive(Debug)]
pub enum Disposition {
    /// The client gets it.
    Relay,
    /// Nobody gets it: it answers the proxy, or was replaced.
    Drop,
    /// An administrator has ended the session: [`Session::on_terminated`](super::Session::on_terminated) says whether
    /// that was a takeover.
    Terminated,
    /// Nobody gets it. What waits for the client is sent, and the session ends.
    End(Box<Ending>),
}

/// A refusal for the record.
#[derive(Debug)]
pub struct Refusal {
    /// What the client was told, or would have been.
    pub rejection: Rejection,
    /// Whether it was carried out.
    pub enforcement: Enforcement,
    /// The statement that it is about.
    pub statement: Option<JudgedText>,
}

/// Class and text of a statement, for the record of its refusal.
#[derive(Debug, Clone)]
pub struct JudgedText {
    /// As the policy names it.
    pub class: &'static str,
    /// The front of the text.
    pub text: Vec<u8>,
    /// The trace that it says it is a part of.
    pub traceparent: Option<Traceparent>,
}

/// The kind of message that is refused: it decides what PostgreSQL would have answered to an error in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Query, FunctionCall: an error and ReadyForQuery.
    Whole,
    /// Execute: an error, and then everything is skipped up to Sync.
    InPipeline,
    /// CopyData, CopyDone: the COPY fails.
    CopyData,
}

impl Refused {
    /// Of the request that a text is sent with.
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
