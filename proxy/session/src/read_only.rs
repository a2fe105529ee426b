//! Whether PostgreSQL's read-only mode is up for a session that may not write, and how sure that is.

use pgpalisade_policies::{Access, Chain, CommitsInside, Control, Statement, Verdict};

use super::access::{AccessMode, Adjustment, Place, WriteAccess};

/// How sure it is that read-only mode holds for a session that may not write.
///
/// A function of the database may set `default_transaction_read_only`. That changes nothing for the transaction that it
/// runs in, but for the next, and the server tells only with ReadyForQuery.
/// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-ASYNC>
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Certainty {
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
    fn after(self, statement: &Statement) -> Self {
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

/// What a rollback to a savepoint, or one AND CHAIN, does to the mode of the open transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartialRollback {
    /// It has begun read-only, and stays so.
    Keeps,
    /// It was made read-only behind its start, or has failed before that could be done.
    MayLift,
}

/// What keeps a session that may not write from writing, where the next statement runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    certainty: Certainty,
    partial_rollback: PartialRollback,
}

impl Guard {
    /// Read-only mode that the server has told of.
    pub const SURE: Self = Self::new(Certainty::Sure);
    /// Nothing is known.
    pub(crate) const IN_DOUBT: Self = Self::new(Certainty::InDoubt);

    /// One of a transaction that is as it began.
    #[must_use]
    pub(crate) const fn new(certainty: Certainty) -> Self {
        Self {
            certainty,
            partial_rollback: PartialRollback::Keeps,
        }
    }

    /// Whether the session may be able to write.
    #[must_use]
    pub const fn is_in_doubt(self) -> bool {
        matches!(self.certainty, Certainty::InDoubt)
    }

    /// How it is behind a statement.
    #[must_use]
    #[inline]
    pub fn after(self, statement: &Statement) -> Self {
        match statement.controls.is_empty() {
            // The way of nearly every statement: it can have run something, and does nothing to the session.
            true if statement.may_hide_a_write() => self.behind_a_run(),
            true => self,
            false => self.after_controls(statement),
        }
    }

    /// How it is behind something that may run a function of the database.
    #[inline]
    const fn behind_a_run(self) -> Self {
        let certainty = match self.certainty {
            Certainty::Sure => Certainty::Ran,
            certainty => certainty,
        };
        Self { certainty, ..self }
    }

    fn after_controls(self, statement: &Statement) -> Self {
        let mut controls = statement.controls.iter();
        let is_lifted = self.partial_rollback == PartialRollback::MayLift
            && controls.clone().any(rolls_back_a_part);
        if is_lifted || controls.clone().any(lifts) {
            return Self::IN_DOUBT;
        }
        Self {
            certainty: self.certainty.after(statement),
            partial_rollback: match controls.any(ends_transaction) {
                true => PartialRollback::Keeps,
                false => self.partial_rollback,
            },
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

    /// How it is where the next message arrives.
    pub(super) fn guard(&self) -> Guard {
        Guard {
            certainty: self.certainty(),
            partial_rollback: match self.mode.has_begun_read_only() {
                true => PartialRollback::Keeps,
                false => PartialRollback::MayLift,
            },
        }
    }

    /// How sure it is there. While the default is read-write, a transaction may still be read-only.
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
        let mut statements = verdict.statements.iter();
        let after = statements.clone().fold(self.guard(), Guard::after);
        self.certainty = match statements.any(|statement| self.ends_at_once(statement)) {
            true => Certainty::InDoubt,
            false => after.certainty,
        };
    }

    /// Whether the transaction of a pipeline ends with it, or within it, and what follows may run in one that is not
    /// read-only. In a text with other statements PostgreSQL does not run it.
    /// `XACT_FLAGS_NEEDIMMEDIATECOMMIT` in PostgreSQL's source.
    fn ends_at_once(&self, statement: &Statement) -> bool {
        let discards = |control: &Control| matches!(control, Control::DiscardAll);
        statement.commits_inside == CommitsInside::Possibly
            || self.mode.startup() == Access::ReadWrite && statement.controls.iter().any(discards)
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

/// Whether the client makes the open transaction read-write, which only a holder may.
const fn lifts(control: &Control) -> bool {
    matches!(
        control,
        Control::SetTransactionAccess(Access::ReadWrite)
            | Control::Begin {
                access: Some(Access::ReadWrite)
            }
    )
}

/// Whether what was done in a part of the transaction is undone, and the transaction goes on, or its modes.
const fn rolls_back_a_part(control: &Control) -> bool {
    matches!(
        control,
        Control::RollbackTo(_)
            | Control::Rollback { chain: Chain::Yes }
            | Control::Commit { chain: Chain::Yes }
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
