//! State machine of one client's session: messages of both sides go in, and what to do with each comes out. Pure: no
//! I/O, no clock, no waiting. `relay` in `proxy/server` drives it.
//!
//! - [`Session::on_frontend`] decides a frontend message. What must happen first is an [`action::Prerequisite`]: the
//!   driver carries it out, and the same message is decided again.
//! - [`Session::on_backend`] applies a backend message. Only there does a reply change the session.
//! - [`Output`] holds the session's own messages and records after each call.
//!
//! [`ClientHalf`] is what belongs to the client, [`ServerHalf`] what belongs to the server connection. Between two
//! transactions a session can be [parted](Session::part), and the server connection [lent](Session::lend) to another
//! client.

pub mod access_mode;
pub mod action;
mod backend;
pub mod command_tag;
mod copy_in;
pub mod endings;
mod extended;
pub mod frame;
mod frontend;
pub mod greeting;
mod guarding;
mod held_back;
pub mod in_flight;
mod injected;
mod judgement;
pub mod ledger;
mod lending;
mod lookup;
pub mod lost_server;
mod name_change;
mod name_table;
pub mod names;
mod parse_again;
pub mod read_only;
mod refusing;
mod reported;
mod server_error;
pub mod settings;
mod shown;
mod statements;
pub mod text_settings;
pub mod token_request;
mod token_text;
pub mod tokens;
pub mod unserved;

use std::sync::Arc;

use bytes::BytesMut;
use pgpalisade_authority::{Mark, Scope};
use pgpalisade_policies::{Access, Analysis};

use pgpalisade_fence as fence;
use pgpalisade_fence::rejection;
use pgpalisade_wire as wire;

use crate::fence::{Fence, HeldTokens, Identified, Pipeline, SessionFence, SessionState, Taken};
use crate::rejection::Rejection;
use crate::wire::backend::TransactionStatus;
use access_mode::Reported;
use action::{RecordedRefusal, Waiting};
use endings::FinalError;
use greeting::{Greeting, ReportedSettings};
use ledger::Ledger;
use lending::Tenancy;
use names::Names;
use read_only::ReadOnlyGuard;
use settings::{Settings, Texts};
use statements::Statements;
use text_settings::{Reports, TextSettings};
use tokens::Registration;
use unserved::{Block, NextReply};

/// Server process of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Process id from the login.
    Pid(i32),
    /// Identified process, so the session can be registered.
    Known(Identified),
}

impl Identity {
    /// Process id.
    #[must_use]
    pub const fn pid(self) -> i32 {
        match self {
            Self::Pid(pid) => pid,
            Self::Known(found) => found.backend.pid,
        }
    }
}

/// Activity of a session, in the terms of `pg_stat_activity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// No transaction is open.
    Idle,
    /// Waits for the server, or has more of a request to send.
    Active,
    /// Idle in an open transaction.
    InTransaction,
    /// Idle in a failed transaction.
    InFailedTransaction,
}

/// Result of a prerequisite.
#[derive(Debug, PartialEq, Eq)]
pub enum Met {
    /// The message can be decided.
    Yes,
    /// The message is to be refused.
    Refused(Box<Rejection>),
    /// The server refused it, and the client has its answer.
    Answered,
}

/// The session's own messages and records.
#[derive(Debug, Default)]
pub struct Output {
    /// For the client, ahead of the current message.
    pub to_client: BytesMut,
    /// For the server, ahead of the current message.
    pub to_server: BytesMut,
    /// Refusals to record.
    pub refusals: Vec<RecordedRefusal>,
}

impl Output {
    /// Whether nothing is pending.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.to_client.is_empty() && self.to_server.is_empty() && self.refusals.is_empty()
    }
}

/// State that belongs to the client, whichever server connection serves it.
#[derive(Debug)]
pub struct ClientHalf {
    /// Policy rules for this session.
    fence: SessionFence,
    /// Tokens and transaction status, as the server has confirmed them.
    state: SessionState,
    pipeline: Pipeline,
    /// Whether the next message waits for the replies to everything sent: a request in flight may change what the
    /// session holds.
    settles: bool,
    /// Takeover that would have ended the session in enforce mode.
    observed_end: Option<Mark>,
    /// Whether the open transaction, which enforce mode would have begun read-only, has run a query.
    has_queried: bool,
    /// Default access mode that the client knows of.
    told_access: Option<Access>,
    /// Its prepared statements while it has no server connection. `None` if it had none yet.
    statements: Option<Box<Statements>>,
    block: Block,
    next_reply: NextReply,
    settings: Settings,
    /// Whether a portal of the open transaction is of a name that may stand for another statement.
    doubts_name: bool,
    /// What it was told of the settings of a lent server connection.
    told: Arc<Greeting>,
    /// Number of its statements after which values of its session are gone.
    discards: u32,
}

/// State that belongs to the server connection, whichever client it serves.
#[derive(Debug)]
pub struct ServerHalf {
    identity: Identity,
    /// Tokens that the session is registered with.
    registration: Registration,
    read_only: ReadOnlyGuard,
    ledger: Ledger,
    /// Whether a COMMIT inside a pipeline or query has completed since the last ReadyForQuery. If the rest of the
    /// request fails, that part stays committed.
    is_committed_midway: bool,
    names: Names,
    text_settings: TextSettings,
    /// Whether the server has a value for `fencing.token`, perhaps an empty one.
    has_token_text: bool,
    tenancy: Tenancy,
    reported: ReportedSettings,
    /// Settings of its client that it has, since the last reset.
    applied: Option<Arc<Texts>>,
    /// Whether something else than reads has run since the login, or since the last reset.
    has_run_more_than_reads: bool,
    /// Whether a DISCARD ALL has completed, and nothing was sent since. Its ReadyForQuery is still to come.
    is_discarded: bool,
    /// Bytes of the texts to parse that were sent since nothing was in flight, and are kept.
    texts_in_flight: usize,
    /// Error with which the connection ends, kept until it is closed.
    final_error: Option<FinalError>,
}

impl ServerHalf {
    /// A server connection for the clients of one login.
    #[must_use]
    pub fn shared(backend_pid: i32, greeting: Arc<Greeting>) -> Self {
        let initial = greeting.initial;
        Self {
            reported: ReportedSettings::new(greeting),
            ..Self::new(backend_pid, initial.reported, initial.texts)
        }
    }

    /// A server connection after its login.
    #[must_use]
    pub fn new(backend_pid: i32, reported: Reported, texts: Reports) -> Self {
        Self {
            identity: Identity::Pid(backend_pid),
            registration: Registration::default(),
            read_only: ReadOnlyGuard::new(reported),
            ledger: Ledger::default(),
            is_committed_midway: false,
            names: Names::default(),
            text_settings: TextSettings::new(texts),
            has_token_text: false,
            tenancy: Tenancy::ForLife,
            reported: ReportedSettings::default(),
            applied: None,
            has_run_more_than_reads: false,
            is_discarded: false,
            texts_in_flight: 0,
            final_error: None,
        }
    }
}

/// Work done for the message at the front of the client's bytes.
#[derive(Debug, Default)]
struct Prepared {
    /// Verdict on its text, if another thread reached it.
    verdict: Option<Arc<Analysis>>,
    /// Whether it binds an accepted token: the session is then made ready to write.
    is_binding: bool,
    /// The message, while its tokens are declared.
    waiting: Option<Waiting>,
    /// State of the change that makes its transaction read-write.
    read_write: ReadWriteRequest,
    /// Tokens that its declaration has obtained.
    obtained: Option<Taken>,
    /// Whether the client has its answer.
    is_answered: bool,
    /// Last takeovers, as a value of `fencing.history`.
    history: Option<Box<str>>,
}

/// Change of a guarded transaction to read-write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ReadWriteRequest {
    #[default]
    None,
    Sent,
    /// The server refused it, and the client got an error in place of its reply.
    Refused,
}

/// One client's session.
#[derive(Debug)]
pub struct Session {
    /// Both boxed, because they go from hand to hand.
    client: Box<ClientHalf>,
    server: Box<ServerHalf>,
    prepared: Option<Box<Prepared>>,
    output: Output,
}

/// Initial state of a session, from its login.
#[derive(Debug)]
pub struct Beginning {
    /// Policy rules for this session.
    pub fence: SessionFence,
    /// Scope in the startup packet.
    pub scope: Option<Scope>,
    /// Process id of the server process.
    pub backend_pid: i32,
    /// The server's reports about read-only mode.
    pub reported: Reported,
    /// Reported settings that decide how the server reads texts.
    pub texts: Reports,
}

impl Session {
    /// Begins a session after the login's ReadyForQuery.
    #[must_use]
    pub fn new(beginning: Beginning) -> Self {
        let told = beginning.reported.default_access();
        let client = ClientHalf::begin(beginning.fence, beginning.scope, told);
        let server = ServerHalf::new(beginning.backend_pid, beginning.reported, beginning.texts);
        Self::join(Box::new(client), Box::new(server))
    }

    /// The session's own messages and records. The reader drains them.
    #[inline]
    pub const fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Policy that the session follows.
    #[inline]
    #[must_use]
    pub const fn fence(&self) -> &Arc<Fence> {
        self.client.fence.fence()
    }

    /// Switches to another policy.
    pub fn follow(&mut self, fence: SessionFence) {
        self.client.fence = if self.client.fence.is_given_tokens() {
            fence.with_given_tokens()
        } else {
            fence
        };
        if let Some(prepared) = &mut self.prepared {
            // The new policy may let the token write nothing.
            prepared.is_binding = false;
        }
    }

    /// Server process of the session.
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

    /// Whether no transaction is open and nothing is in flight.
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

    /// Whether a message that waits for replies can go on. COPY data must be sent before the server answers what
    /// follows it.
    #[inline]
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.server.ledger.is_empty() || self.server.ledger.is_copying_in()
    }

    /// Whether the next request belongs to an open transaction.
    #[inline]
    fn is_inside(&self) -> bool {
        self.client.state.status() != TransactionStatus::Idle
            || self.client.pipeline == Pipeline::Open
    }

    /// Current activity of the session.
    #[inline]
    #[must_use]
    pub fn activity(&self) -> Activity {
        if !self.is_answered() || self.client.pipeline == Pipeline::Open {
            return Activity::Active;
        }
        match self.client.state.status() {
            TransactionStatus::Idle => Activity::Idle,
            TransactionStatus::InTransaction => Activity::InTransaction,
            TransactionStatus::Failed => Activity::InFailedTransaction,
        }
    }

    /// The tokens in force.
    #[inline]
    #[must_use]
    pub fn tokens(&self) -> Option<&Arc<HeldTokens>> {
        self.client.state.held()
    }

    fn is_failed(&self) -> bool {
        self.client.state.is_failed()
    }

    fn prepared(&mut self) -> &mut Prepared {
        self.prepared.get_or_insert_default()
    }

    #[inline]
    fn is_binding(&self) -> bool {
        let prepared = self.prepared.as_ref();
        prepared.is_some_and(|prepared| prepared.is_binding)
    }
}

#[cfg(test)]
mod tests;
