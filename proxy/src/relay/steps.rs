//! What a look at one message of the client can end in.

use std::sync::Arc;

use pgpalisade_policies::{Lexing, Verdict};

use crate::fence::{Permit, TokenValue};
use crate::rejection::Rejection;
use crate::session::access::Adjustment;
use crate::session::in_flight::InFlight;
use crate::wire::WireError;

/// What is to be done with the message at the front of the client's bytes.
///
/// After every step but the final ones the same message is looked at again, with the connection's
/// state one step further. So each step is small, and no order of steps is written down anywhere.
pub(super) enum Step {
    /// Final: send it.
    Forward(Forward),
    /// Final: the server would throw it away, so the proxy does.
    Discard,
    /// Final: the client says goodbye.
    Terminate,
    /// Final: refuse it.
    Refuse(Box<Rejection>, Refused),
    /// Final: it breaks the protocol.
    Broken(WireError),
    /// More of it must arrive.
    NeedBytes,
    /// Everything that was sent must be answered first.
    AwaitReplies,
    /// These tokens must be accepted first.
    Declare(TokenValue),
    /// The transaction's access mode must change first.
    Adjust(Adjustment),
    /// The server must learn what SHOW will ask for first.
    PublishSettings,
    /// Its text must be classified first, on another thread.
    Classify(Vec<u8>, Lexing),
    /// The server must say where it looks for names without a schema first.
    AskSearchPath,
}

/// How a message is sent on.
pub(super) struct Forward {
    /// Its right to be sent.
    pub permit: Permit,
    /// What completes it, where it has a reply.
    pub entry: Option<InFlight>,
    /// Whether the client's next message must wait for the reply.
    pub then: Then,
    /// Why it would be refused, were that not only observed.
    pub observed: Option<Box<Rejection>>,
}

/// What follows a message that was sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// The next one may follow at once.
    GoOn,
    /// It may have changed what the session holds: the next one is decided after the reply.
    Settle,
}

impl Forward {
    /// Sends a message that nothing has to wait for.
    pub(super) const fn plain(permit: Permit, entry: Option<InFlight>) -> Self {
        Self {
            permit,
            entry,
            then: Then::GoOn,
            observed: None,
        }
    }
}

/// What kind of message is refused: it decides what PostgreSQL would have answered to an error in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Query, FunctionCall: an error and ReadyForQuery.
    Whole,
    /// Execute: an error, and then everything is skipped up to Sync.
    InPipeline,
    /// CopyData, CopyDone: the COPY fails.
    CopyData,
}

/// A verdict and the text that it is about.
pub(super) struct Judged<'a> {
    pub verdict: &'a Arc<Verdict>,
    /// As much of the text as is there, for the record of a rejection.
    pub text: &'a [u8],
}
