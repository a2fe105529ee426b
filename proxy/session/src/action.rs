//! What the session answers to a message: what its driver is to do with it.

use pgpalisade_policies::{Lexing, Opaque};

use super::access::Adjustment;
use super::tokens::Wanted;
use crate::fence::Permit;
use crate::rejection::Enforcement;
use crate::rejection::Rejection;
use crate::wire::WireError;
use crate::wire::header::{HEADER_LEN, Header};

/// A message of the client, as far as it has arrived.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    pub(super) header: Header,
    pub(super) body: &'a [u8],
    rest: Rest,
}

/// Whether more of a message may be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    MayCome,
    /// There is no room for it.
    NoRoom,
}

impl<'a> Frame<'a> {
    /// The message at the front of `bytes`, which begin with its header.
    #[inline]
    #[must_use]
    pub fn new(header: Header, bytes: &'a [u8]) -> Self {
        let body = bytes.get(HEADER_LEN..bytes.len().min(header.frame_len()));
        Self {
            header,
            body: body.unwrap_or_default(),
            rest: Rest::MayCome,
        }
    }

    /// The same, where nobody waits for the rest of it.
    #[must_use]
    pub const fn without_room(self) -> Self {
        Self {
            rest: Rest::NoRoom,
            ..self
        }
    }

    #[inline]
    pub(super) const fn is_whole(&self) -> bool {
        self.body.len() == self.header.body_len
    }

    pub(super) fn has_room(&self) -> bool {
        self.rest == Rest::MayCome
    }
}

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
    End(Ending),
}

/// What must happen before a message can be decided or sent.
#[derive(Debug)]
pub enum Prerequisite {
    /// All that was sent is answered.
    Replies,
    /// The text is classified, on another thread.
    Verdict(Vec<u8>, Lexing),
    /// The server has said where it looks for names without a schema.
    SearchPath,
    /// The access mode of the open transaction, or of those to come, is another.
    Access(Adjustment),
    /// These tokens are accepted for the session. Where a transaction is open that began read-only, it is lifted
    /// first: should it be too late for that, nothing was declared and no mark was raised.
    Tokens(Box<Wanted>, Option<Adjustment>),
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
    End(Ending),
}

/// Why the proxy ends a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    /// The client has broken the protocol: PostgreSQL ends such a session too.
    #[error("protocol violation: {0}")]
    ProtocolViolation(WireError),
    /// The server has done something else than was judged.
    #[error("the reply {reply:?} {command_tag:?} contradicts the judgement of its request")]
    Contradiction {
        /// The type of the reply.
        reply: char,
        /// What it says that was done.
        command_tag: String,
    },
    /// A statement of the proxy's own has failed that must not.
    #[error("a statement of the proxy's own failed: {0}")]
    OwnStatement(String),
    /// A declaration has had no answer, and the session could go on under a lower token.
    #[error("a declaration has had no answer")]
    Unanswered,
    /// A takeover has ended it, and nothing was in doubt.
    #[error("ended by a takeover")]
    TakenOver,
    /// A takeover has ended it, while something was sent that may have been committed.
    #[error("ended by a takeover, outcome unknown")]
    OutcomeUnknown,
    /// The server has ended it and has said why.
    #[error("the server ended the session")]
    ByServer,
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

/// A message that waits for its tokens.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) refused: Refused,
    pub(super) statement: Option<JudgedText>,
}

/// Why a text of this length is not collected.
pub(super) const fn why_not_collected(header: Header) -> Opaque {
    match header.body_len <= super::frontend::COLLECTED_MAX {
        true => Opaque::NoRoom,
        false => Opaque::TooLong,
    }
}
