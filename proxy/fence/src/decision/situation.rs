//! What a text is judged by.

use std::sync::Arc;

use pgpalisade_wire::backend::TransactionStatus;

use crate::guard::Guard;
use crate::prepared::{Meaning, Name, PreparedNames};
use crate::variables::Variables;
use crate::{HeldTokens, SessionFence};

/// Whether messages of the extended protocol were sent since the last Sync. Such a pipeline is a
/// transaction of its own where no block is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pipeline {
    /// Everything so far was synchronised.
    Closed,
    /// A Sync is due.
    Open,
}

/// Whether the open transaction may have written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wrote {
    /// Nothing yet.
    #[default]
    No,
    /// It may have.
    Yes,
}

/// What is known of a session where a text arrives.
#[derive(Clone, Copy)]
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

/// What the server has confirmed, and what was sent since in the same request cycle.
#[derive(Clone, Copy)]
pub struct Confirmed<'a> {
    /// What names stand for.
    pub names: &'a dyn PreparedNames,
    /// Whether read-only mode holds for a session that may not write.
    pub guard: Guard,
}

impl<'a> Confirmed<'a> {
    /// What a name stands for; `None` where that is nothing that is known.
    pub(super) fn find(self, name: Name<'_>) -> Option<&'a Meaning> {
        self.names.find(name)
    }
}
