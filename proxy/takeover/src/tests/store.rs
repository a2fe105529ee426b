//! The authority: records in memory, with the steps of the shipped rule.

use std::time::Duration;

use pgpalisade_authority::rule::{self, Records};
use pgpalisade_authority::{Backend, Declaration, Declared, Drained, Rank, Scope};
use pgpalisade_conformance::MemoryStore;

/// The store, and what a run knows of it.
#[derive(Default)]
pub(super) struct Authority {
    pub(super) now: MemoryStore,
    /// Whether a session has joined since the backup.
    pub(super) is_joined: bool,
    pub(super) is_away: bool,
    pub(super) backup: Option<(MemoryStore, Duration)>,
    /// What a lagging read sees. Only without a guard.
    pub(super) lagging: Option<MemoryStore>,
}

impl Authority {
    /// A declaration that is decided by a lagging read: neither mark nor register are compared again.
    pub(super) fn declare_by_reading(&mut self, asked: &Declaration) -> Declared {
        let known = self.lagging.as_ref().unwrap_or(&self.now);
        let row = known.marks.get(&asked.scope).cloned();
        let mut ruling = rule::declare(known.cluster, row, asked, 1);
        let lower = match ruling.lists {
            Some(rank) => {
                let mut lower = known.sessions_of(&asked.scope).unwrap();
                lower.retain(|session| session.rank() < rank);
                lower
            }
            None => Vec::new(),
        };
        let newest = self.now.rank(&asked.scope);
        ruling.writes = ruling.writes.filter(|row| Some(row.mark.rank()) > newest);
        ruling.lists = None;
        self.now.carry_out(&asked.scope, &ruling).unwrap();
        ruling.answer(lower)
    }

    /// A declaration whose session is not registered.
    pub(super) fn declare_unregistered(&mut self, asked: &Declaration) -> Declared {
        let row = self.now.marks.get(&asked.scope).cloned();
        let mut ruling = rule::declare(self.now.cluster, row, asked, 1);
        ruling.registers = None;
        let listed = self.now.carry_out(&asked.scope, &ruling).unwrap();
        ruling.answer(listed)
    }

    /// A barrier's report that marks the scope as drained whatever the mark is.
    pub(super) fn drained_for_any(
        &mut self,
        scope: &Scope,
        rank: Rank,
        gone: &[Backend],
    ) -> Drained {
        let drained = self.now.drained(scope, rank, gone).unwrap();
        if let (Drained::Complete, Some(row)) = (&drained, self.now.marks.get_mut(scope)) {
            row.drained = true;
        }
        drained
    }

    /// The same without a look at the records.
    pub(super) fn drained_unseen(
        &mut self,
        scope: &Scope,
        rank: Rank,
        gone: &[Backend],
    ) -> Drained {
        let _left = self.now.drained(scope, rank, gone).unwrap();
        if let Some(row) = self.now.marks.get_mut(scope) {
            row.drained |= row.mark.rank() == rank;
        }
        Drained::Complete
    }

    /// Removes every record with one of these process ids.
    pub(super) fn forget_by_pid(&mut self, gone: &[Backend]) {
        let is_gone = |backend: &Backend| gone.iter().any(|g| g.pid == backend.pid);
        self.now
            .sessions
            .retain(|(_, backend), _| !is_gone(backend));
    }
}
