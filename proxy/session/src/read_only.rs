//! Whether PostgreSQL's read-only mode is up for a session that may not write, and how sure that is.

use pgpalisade_policies::{Control, Statement, Verdict};

use super::access::{AccessMode, Adjustment, Place, WriteAccess};

/// How sure it is that read-only mode holds for a session that may not write.
///
/// A function of the database may set `default_transaction_read_only`. That changes nothing for the transaction that it
/// runs in, but for the next, and the server tells only with ReadyForQuery.
/// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-ASYNC>
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Certainty {
    /// The server has told, and nothing has run since.
    #[default]
    Sure,
    /// Something has run that may have switched it off for the next transaction.
    Ran,
    /// And the next one has begun.
    InDoubt,
}

impl Certainty {
    /// How it is behind a statement.
    #[must_use]
    pub fn after(self, statement: &Statement) -> Self {
        let mut controls = statement.controls.iter();
        let ends = controls.clone().any(ends_transaction);
        let switches = statement.may_hide_a_write() || controls.any(sets_default_access);
        match self {
            Self::Sure if switches => Self::Ran,
            Self::Ran if ends => Self::InDoubt,
            certainty => certainty,
        }
    }
}

/// The read-only mode of a session: how it is set, and how sure that is by what was sent in the open request cycle.
#[derive(Debug)]
pub(super) struct ReadOnlyGuard {
    pub(super) mode: AccessMode,
    certainty: Certainty,
}

impl ReadOnlyGuard {
    /// One that the server has just reported.
    pub(super) const fn new(mode: AccessMode) -> Self {
        Self {
            mode,
            certainty: Certainty::Sure,
        }
    }

    /// How sure it is where the next message arrives. While the default is read-write, a transaction may still be
    /// read-only.
    #[inline]
    pub(super) const fn certainty(&self) -> Certainty {
        match self.certainty {
            Certainty::Sure if !self.mode.is_read_only() => Certainty::Ran,
            certainty => certainty,
        }
    }

    /// What must be changed in the open transaction before something could hide a write in it.
    pub(super) fn lower_due(&self) -> bool {
        let due = self
            .mode
            .adjustment(WriteAccess::MayNotWrite, Place::Inside);
        due == Some(Adjustment::SetReadOnly)
    }

    /// Something is sent that may run a function of the database.
    #[inline]
    pub(super) const fn on_run(&mut self) {
        if matches!(self.certainty, Certainty::Sure) {
            self.certainty = Certainty::Ran;
        }
    }

    /// An Execute of this is sent.
    pub(super) fn on_execute(&mut self, verdict: &Verdict) {
        let statements = verdict.statements.iter();
        self.certainty = statements.fold(self.certainty(), Certainty::after);
    }

    /// An Execute is sent of something that does nothing to the session.
    #[inline]
    pub(super) fn on_plain_execute(&mut self, verdict: Option<&Verdict>) {
        match (self.certainty(), verdict) {
            (Certainty::Sure, Some(verdict)) => self.on_execute(verdict),
            (Certainty::Sure, None) => self.certainty = Certainty::Ran,
            (certainty, _) => self.certainty = certainty,
        }
    }

    /// A COPY reads in a pipeline whose Sync the server has ignored: its transaction goes on.
    pub(super) const fn on_copy_in(&mut self) {
        self.certainty = Certainty::InDoubt;
    }

    /// A request cycle has ended: the server tells what has become of it.
    #[inline]
    pub(super) const fn end_cycle(&mut self) {
        self.certainty = Certainty::Sure;
    }
}

pub(super) const fn ends_transaction(control: &Control) -> bool {
    matches!(
        control,
        Control::Commit { .. } | Control::Rollback { .. } | Control::PrepareTransaction
    )
}

/// Whether it may change the mode of later transactions. A RESET goes back to what the session began with.
const fn sets_default_access(control: &Control) -> bool {
    matches!(
        control,
        Control::ResetAll
            | Control::DiscardAll
            | Control::ResetDefaultAccess
            | Control::SetDefaultAccess(_)
    )
}
