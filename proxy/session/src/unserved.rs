//! A client without a server connection, and what it is told without one.

use bytes::BytesMut;

use super::{Activity, ClientHalf};
use crate::wire::backend::TransactionStatus;
use crate::wire::encode::{self, ReadyForQuery};
use crate::wire::frontend::FrontendTag;

/// Answer to the client's next message.
#[derive(Debug, Default)]
pub(super) enum NextReply {
    #[default]
    OfServer,
    /// This error, in place of the server's.
    Error(Box<[u8]>),
    /// None before Sync: its pipeline has failed.
    AtSync,
}

/// Transaction block that the client believes to be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    None,
    /// One that has failed with its server connection.
    Failed,
    /// Its new server connection is being put into such a one.
    Entering,
}

/// Whether a message needs a server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Server,
    /// It was answered, or the server would ignore it.
    Nothing,
}

impl ClientHalf {
    /// Activity of the client between two server connections.
    #[must_use]
    pub const fn activity(&self) -> Activity {
        match self.block {
            Block::None => Activity::Idle,
            Block::Failed | Block::Entering => Activity::InFailedTransaction,
        }
    }

    const fn status(&self) -> TransactionStatus {
        match self.block {
            Block::None => TransactionStatus::Idle,
            Block::Failed | Block::Entering => TransactionStatus::Failed,
        }
    }

    /// Has the client's next message answered with an error.
    pub fn owe(&mut self, error: &[u8]) {
        self.next_reply = NextReply::Error(error.into());
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
