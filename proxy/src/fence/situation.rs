//! What a text is judged by.

use std::sync::Arc;

use pgpalisade_policies::{SearchPath, Statement};

use super::Holding;
use super::plan::{ends_transaction, sets_default_access};
use crate::session::Pipeline;
use crate::session::ledger::{Ledger, Settled, Wrote};
use crate::session::names::{self, Meaning, Name, Names};
use crate::session::settings::Settings;
use crate::wire::backend::TransactionStatus;

/// What is known of a session where a text arrives.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// Its token as PostgreSQL keeps it. A text that depends on it waits until everything before it was answered.
    pub settings: &'a Settings<Arc<Holding>>,
    /// Tokens that were accepted for it, whether in force or not.
    pub accepted: &'a [Arc<Holding>],
    /// The server's last word.
    pub status: TransactionStatus,
    /// Whether the open transaction may have written.
    pub wrote: Wrote,
    /// Whether the text is part of a pipeline.
    pub pipeline: Pipeline,
    /// Where names without a schema are looked up.
    pub path: SearchPath<'a>,
    /// What the server has confirmed; `None` stands for the worst that may be.
    pub confirmed: Option<Confirmed<'a>>,
}

/// What the server has confirmed, and what was sent since in the same request cycle. Nobody can make it while the reply
/// to an earlier cycle may change it.
#[derive(Debug, Clone, Copy)]
pub struct Confirmed<'a> {
    names: &'a Names,
    ledger: &'a Ledger,
    guard: Guard,
}

impl<'a> Confirmed<'a> {
    /// What names stand for, and whether read-only mode holds for the session, where it may not write.
    #[must_use]
    pub const fn new(
        _settled: Settled<'a>,
        names: &'a Names,
        ledger: &'a Ledger,
        guard: Guard,
    ) -> Self {
        Self {
            names,
            ledger,
            guard,
        }
    }

    /// What a name stands for; `None` where that is nothing that is known.
    pub(super) fn find(self, name: Name<'_>) -> Option<&'a Meaning> {
        names::find(self.names, self.ledger, name).unwrap_or(Some(&Meaning::MaySteer))
    }

    pub(super) const fn guard(self) -> Guard {
        self.guard
    }
}

/// How sure it is that read-only mode holds for a session that may not write.
///
/// A function of the database may set `default_transaction_read_only`. That changes nothing for the transaction that it
/// runs in, but for the next, and the server tells only with ReadyForQuery.
/// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-ASYNC>
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Guard {
    /// The server has told, and nothing has run since.
    #[default]
    Sure,
    /// Something has run that may have switched it off for the next transaction.
    Ran,
    /// And the next one has begun.
    InDoubt,
}

impl Guard {
    /// How it is behind a statement.
    #[must_use]
    pub fn after(self, statement: &Statement) -> Self {
        let mut controls = statement.controls.iter();
        let ends = controls.clone().any(ends_transaction);
        let switches = statement.may_hide_a_write() || controls.any(sets_default_access);
        match self {
            Self::Sure if switches => Self::Ran,
            Self::Ran if ends => Self::InDoubt,
            guard => guard,
        }
    }
}
