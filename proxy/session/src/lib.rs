//! One client's session as a state machine: messages of both sides go in, and what is to be done with each comes out.
//! Pure: no I/O, no clock, no waiting. Its driver is `relay`, in `proxy/server`.
//!
//! - [`Session::on_frontend`] decides a message of the client. What must happen first is an [`action::Prerequisite`]:
//!   the driver sees to it, and then the same message is decided.
//! - [`Session::on_backend`] takes note of a message of the server: here, and nowhere else, what a reply changes is
//!   changed.
//! - What the session itself says, to either side or for the record, stands in its [`Output`] after each call.
//!
//! What belongs to the client and what belongs to the connection to the server are kept apart: `ClientHalf` and
//! `ServerHalf`.

pub mod action;
mod backend;
pub mod command_tag;
mod copy_in;
pub mod endings;
mod extended;
pub mod frame;
mod frontend;
mod guarding;
pub mod in_flight;
mod injected;
mod judgement;
pub mod ledger;
mod lookup;
pub mod names;
pub mod read_only;
mod refusing;
mod shown;
pub mod startup_options;
pub mod text_settings;
mod token_text;
pub mod tokens;

use std::sync::Arc;

use bytes::BytesMut;
use pgpalisade_authority::{Mark, Scope};
use pgpalisade_policies::Analysis;

use pgpalisade_fence as fence;
use pgpalisade_fence::rejection;
use pgpalisade_wire as wire;

use crate::fence::{Fence, HeldTokens, Identified, Pipeline, SessionFence, Variables};
use crate::rejection::{Enforcement, Rejection};
use crate::wire::backend::TransactionStatus;
use action::{Refusal, Waiting};
use ledger::Ledger;
use names::Names;
use read_only::{ReadOnlyGuard, Reported};
use text_settings::{Reports, TextSettings};
use token_text::TokenText;
use tokens::Granted;

pub use frontend::Adjusted;

/// What is known of the session's server process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Its process id, as told at login.
    Pid(i32),
    /// It is this one, and the session may be registered.
    Known(Identified),
}

impl Identity {
    const fn pid(self) -> i32 {
        match self {
            Self::Pid(pid) => pid,
            Self::Known(found) => found.backend.pid,
        }
    }
}

/// What a session is doing, as `pg_stat_activity` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Nothing.
    Idle,
    /// It waits for the server, or has more of a request to send.
    Active,
    /// Nothing, in an open transaction.
    InTransaction,
    /// Nothing, in a transaction that has failed.
    InFailedTransaction,
}

/// Whether the next message waits for the replies to what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settles {
    No,
    /// Something was sent that may change what the session holds.
    Yes,
}

/// Whether something was committed since the last ReadyForQuery: a COMMIT in the middle of a pipeline
/// or text. What follows may fail, but not all of the request is undone then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommittedMidway {
    No,
    Yes,
}

/// What the session says besides the messages that pass.
#[derive(Debug, Default)]
pub struct Output {
    /// For the client, in front of the message that is being looked at.
    pub to_client: BytesMut,
    /// For the server, in front of the message that is being looked at.
    pub to_server: BytesMut,
    /// For the record.
    pub refusals: Vec<Refusal>,
}

impl Output {
    /// Whether there is nothing in it.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.to_client.is_empty() && self.to_server.is_empty() && self.refusals.is_empty()
    }
}

/// What belongs to the client, whatever server connection serves it.
#[derive(Debug)]
struct ClientHalf {
    /// What of the policy holds for it.
    fence: SessionFence,
    /// Its tokens, as PostgreSQL keeps a setting.
    variables: Variables<Arc<HeldTokens>>,
    pipeline: Pipeline,
    settles: Settles,
    /// The takeover that would have ended the session, were that not only observed.
    observed_end: Option<Mark>,
}

/// What belongs to the connection to the server.
#[derive(Debug)]
struct ServerHalf {
    identity: Identity,
    /// The tokens that it is registered with.
    granted: Granted,
    read_only: ReadOnlyGuard,
    ledger: Ledger,
    /// The last ReadyForQuery.
    status: TransactionStatus,
    committed_midway: CommittedMidway,
    names: Names,
    text_settings: TextSettings,
    /// What it has as `fencing.token`.
    token_text: TokenText,
    /// Its message that it ends the session, kept back until it has closed its side.
    final_error: Option<BytesMut>,
}

/// What was found out and done for the message at the front of the client's bytes.
#[derive(Debug, Default)]
struct Prepared {
    /// The verdict on its text, where that was reached on another thread.
    verdict: Option<Arc<Analysis>>,
    /// It binds a token that was accepted: the session is made ready to write for it.
    binds: Binds,
    /// The message, while tokens are declared for it.
    waiting: Option<Waiting>,
    /// What became of the lift of its transaction.
    lift: Lift,
    /// The tokens that were accepted for it, as a value of `fencing.token`.
    tokens: Option<Box<str>>,
    /// How the last takeovers went, as `fencing.history`.
    history: Option<Box<str>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Binds {
    #[default]
    No,
    Yes,
}

/// The change of a transaction that began read-only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Lift {
    #[default]
    None,
    Sent,
    /// The server has refused it, and the client was told so in the place of its own answer.
    Refused,
}

/// One client's session.
#[derive(Debug)]
pub struct Session {
    client: ClientHalf,
    server: ServerHalf,
    prepared: Option<Box<Prepared>>,
    output: Output,
}

/// What a session begins with, as its login has told.
#[derive(Debug)]
pub struct Beginning {
    /// What of the policy holds for it.
    pub fence: SessionFence,
    /// The scope of its startup packet.
    pub scope: Option<Scope>,
    /// Its server process id.
    pub backend_pid: i32,
    /// What the server has reported of read-only mode.
    pub reported: Reported,
    /// How the server reads its texts.
    pub texts: Reports,
}

impl Session {
    /// A session of which the server has just said that it is ready.
    #[must_use]
    pub fn new(beginning: Beginning) -> Self {
        Self {
            client: ClientHalf {
                fence: beginning.fence,
                variables: Variables::new(None, beginning.scope),
                pipeline: Pipeline::Closed,
                settles: Settles::No,
                observed_end: None,
            },
            server: ServerHalf {
                identity: Identity::Pid(beginning.backend_pid),
                granted: Granted::default(),
                read_only: ReadOnlyGuard::new(beginning.reported),
                ledger: Ledger::default(),
                status: TransactionStatus::Idle,
                committed_midway: CommittedMidway::No,
                names: Names::default(),
                text_settings: TextSettings::new(beginning.texts),
                token_text: TokenText::default(),
                final_error: None,
            },
            prepared: None,
            output: Output::default(),
        }
    }

    /// What it says besides the messages that pass. Whoever reads it empties it.
    #[inline]
    pub const fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// The policy in force, as far as the session knows.
    #[inline]
    #[must_use]
    pub const fn fence(&self) -> &Arc<Fence> {
        self.client.fence.fence()
    }

    /// Another policy is in force.
    pub fn follow(&mut self, fence: SessionFence) {
        self.client.fence = fence;
        if let Some(prepared) = &mut self.prepared {
            // By it the token may let the session write nothing.
            prepared.binds = Binds::No;
        }
    }

    /// What is known of its server process.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.server.identity
    }

    /// Whether everything that was sent to the server has been answered.
    #[inline]
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.server.ledger.is_empty()
    }

    /// Whether no transaction is open and everything was answered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.is_inside() && self.is_answered()
    }

    /// Whether more may be sent before replies come.
    #[inline]
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.server.ledger.has_room()
    }

    /// Whether what waits for replies can go on. The data of a COPY has to come before the replies to what stands
    /// behind it.
    #[inline]
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.server.ledger.is_empty() || self.server.ledger.is_copying_in()
    }

    /// Whether what is sent next belongs to a transaction that has begun already.
    #[inline]
    fn is_inside(&self) -> bool {
        self.server.status != TransactionStatus::Idle || self.client.pipeline == Pipeline::Open
    }

    /// What it is doing.
    #[inline]
    #[must_use]
    pub fn activity(&self) -> Activity {
        if !self.is_answered() || self.client.pipeline == Pipeline::Open {
            return Activity::Active;
        }
        match self.server.status {
            TransactionStatus::Idle => Activity::Idle,
            TransactionStatus::InTransaction => Activity::InTransaction,
            TransactionStatus::Failed => Activity::InFailedTransaction,
        }
    }

    /// The tokens in force.
    #[inline]
    #[must_use]
    pub const fn tokens(&self) -> Option<&Arc<HeldTokens>> {
        self.client.variables.token()
    }

    fn is_failed(&self) -> bool {
        self.server.status == TransactionStatus::Failed
    }

    fn prepared(&mut self) -> &mut Prepared {
        self.prepared.get_or_insert_default()
    }

    #[inline]
    fn binds(&self) -> Binds {
        let prepared = self.prepared.as_ref();
        prepared.map_or(Binds::No, |prepared| prepared.binds)
    }

    /// Puts a refusal on record.
    fn record(
        &mut self,
        rejection: &Rejection,
        enforcement: Enforcement,
        statement: Option<action::JudgedText>,
    ) {
        self.output.refusals.push(Refusal {
            rejection: rejection.clone(),
            enforcement,
            statement,
        });
    }
}

#[cfg(test)]
mod tests;
