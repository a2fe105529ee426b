//! What a text is judged by.

use std::sync::Arc;

use super::Pipeline;
use super::ledger::{Ledger, Settled, Wrote};
use super::lookup;
use super::names::{Meaning, Name, Names};
use super::read_only::Guard;
use super::variables::Variables;
use crate::fence::{HeldTokens, SessionFence};
use crate::wire::backend::TransactionStatus;

/// What is known of a session where a text arrives.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// What of the policy holds for it.
    pub fence: &'a SessionFence,
    /// Its token as PostgreSQL keeps it. A text that depends on it waits until everything before it was answered.
    pub variables: &'a Variables<Arc<HeldTokens>>,
    /// Tokens that were accepted for it, whether in force or not.
    pub accepted: &'a [Arc<HeldTokens>],
    /// The server's last word.
    pub status: TransactionStatus,
    /// Whether the open transaction may have written.
    pub wrote: Wrote,
    /// Whether the text is part of a pipeline.
    pub pipeline: Pipeline,
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
        lookup::find(self.names, self.ledger, name).unwrap_or(Some(&Meaning::MaySteer))
    }

    pub(super) const fn guard(self) -> Guard {
        self.guard
    }
}
