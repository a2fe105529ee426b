//! A client without a server connection, and what it is told without one.

use std::sync::Arc;

use bytes::BytesMut;
use pgpalisade_authority::Scope;
use pgpalisade_policies::Access;

use super::greeting::Greeting;
use super::settings::{Settings, Texts};
use super::{Activity, ClientHalf};
use crate::fence::{HeldTokens, Pipeline, SessionFence, SessionState};
use crate::wire::backend::TransactionStatus;
use crate::wire::encode::{self, ReadyForQuery};
use crate::wire::frontend::FrontendTag;

/// Answer to the client's next message.
#[derive(Debug, Default)]
pub(super) enum NextReply {
    #[default]
    OfServer,
    /// An error, in place of the server's answer.
    Error(Box<[u8]>),
    /// None before Sync: its pipeline has failed.
    AtSync,
}

/// Transaction block that the client believes to be in.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Block {
    #[default]
    None,
    /// The BEGIN was answered, and is sent ahead of the next message.
    Begun(Box<[u8]>),
    /// The server connection was lost, so it has failed.
    Failed,
    /// A server connection is being put into it, to have this status.
    Entering(TransactionStatus),
}

/// Whether a message needs a server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Server,
    /// Answered, or ignored as by the server.
    Nothing,
}

impl ClientHalf {
    /// A client after its login.
    #[must_use]
    pub fn begin(fence: SessionFence, scope: Option<Scope>, told_access: Option<Access>) -> Self {
        Self {
            fence,
            state: SessionState::new(scope),
            pipeline: Pipeline::Closed,
            settles: false,
            observed_end: None,
            has_queried: false,
            told_access,
            statements: None,
            block: Block::None,
            next_reply: NextReply::OfServer,
            settings: Settings::NONE,
            doubts_name: false,
            told: Arc::default(),
            discards: 0,
        }
    }

    /// Number of its statements after which values of its session are gone: one of its earlier server connections may
    /// still have them.
    #[must_use]
    pub const fn discards(&self) -> u32 {
        self.discards
    }

    /// A client that shares server connections, after its login.
    #[must_use]
    pub fn shared(fence: SessionFence, scope: Option<Scope>, told: Arc<Greeting>) -> Self {
        let told_access = told.initial.reported.default_access();
        Self {
            told,
            ..Self::begin(fence, scope, told_access)
        }
    }

    /// Settings that a server connection needs for it.
    #[must_use]
    pub const fn settings(&self) -> Option<&Arc<Texts>> {
        self.settings.kept.as_ref()
    }

    /// Tokens to declare for the next server connection, unless they were accepted for it.
    #[must_use]
    pub const fn tokens(&self) -> Option<&Arc<HeldTokens>> {
        self.state.undeclared()
    }

    /// Activity of the client between two server connections.
    #[must_use]
    pub const fn activity(&self) -> Activity {
        match self.status() {
            TransactionStatus::Idle => Activity::Idle,
            TransactionStatus::InTransaction => Activity::InTransaction,
            TransactionStatus::Failed => Activity::InFailedTransaction,
        }
    }

    const fn status(&self) -> TransactionStatus {
        match self.block {
            Block::None => TransactionStatus::Idle,
            Block::Begun(_) => TransactionStatus::InTransaction,
            Block::Failed => TransactionStatus::Failed,
            Block::Entering(status) => status,
        }
    }

    /// Has the client's next message answered with an error.
    pub fn owe(&mut self, error: &[u8]) {
        self.next_reply = NextReply::Error(error.into());
        if self.block != Block::None {
            self.block = Block::Failed;
        }
    }

    /// Answers a message as PostgreSQL does after an error, if no server connection is needed for that.
    pub fn answer(&mut self, tag: FrontendTag, out: &mut BytesMut) -> Needs {
        // The rest of a COPY that has failed.
        if matches!(
            tag,
            FrontendTag::CopyData | FrontendTag::CopyDone | FrontendTag::CopyFail
        ) {
            return Needs::Nothing;
        }
        let ends_cycle = matches!(
            tag,
            FrontendTag::Query | FrontendTag::FunctionCall | FrontendTag::Sync
        );
        self.next_reply = match std::mem::take(&mut self.next_reply) {
            NextReply::OfServer => return Needs::Server,
            owed @ NextReply::Error(_) if tag == FrontendTag::Flush => owed,
            NextReply::Error(error) => {
                out.extend_from_slice(&error);
                if ends_cycle {
                    NextReply::OfServer
                } else {
                    NextReply::AtSync
                }
            }
            NextReply::AtSync if tag == FrontendTag::Sync => NextReply::OfServer,
            still @ NextReply::AtSync => still,
        };
        if ends_cycle && matches!(self.next_reply, NextReply::OfServer) {
            encode::put(out, &ReadyForQuery::new(self.status().into()));
        }
        Needs::Nothing
    }
}
