//! The authority: records in memory, with the steps of the shipped rule.

use std::collections::BTreeMap;
use std::time::Duration;

use pgpalisade_authority::rule::{self, MarkRow, Records};
use pgpalisade_authority::{
    Backend, Cluster, Declaration, Declared, Drained, Mark, NoIncarnation, Rank, Registered, Scope,
};

use super::super::plan::NOBODY;

#[derive(Clone, Default)]
pub(super) struct Store {
    pub(super) cluster: Option<Cluster>,
    pub(super) marks: BTreeMap<Scope, MarkRow>,
    pub(super) sessions: BTreeMap<(Scope, Backend), Registered>,
    /// Number of registrations, with those that were removed.
    pub(super) joins: u64,
}

type Answer<T> = Result<T, NoIncarnation>;

impl Records for Store {
    type Error = NoIncarnation;

    fn cluster(&self) -> Answer<Option<Cluster>> {
        Ok(self.cluster)
    }

    fn put_cluster(&mut self, cluster: Cluster) -> Answer<()> {
        self.cluster = Some(cluster);
        Ok(())
    }

    fn mark_row(&self, scope: &Scope) -> Answer<Option<MarkRow>> {
        Ok(self.marks.get(scope).cloned())
    }

    fn put_mark(&mut self, scope: &Scope, row: &MarkRow) -> Answer<()> {
        self.marks.insert(scope.clone(), row.clone());
        Ok(())
    }

    fn registered(&self, scope: &Scope, of: Backend) -> Answer<Option<Registered>> {
        Ok(self.sessions.get(&(scope.clone(), of)).copied())
    }

    fn put_session(&mut self, scope: &Scope, session: Registered) -> Answer<()> {
        self.joins += u64::from(session.backend != NOBODY);
        self.sessions
            .insert((scope.clone(), session.backend), session);
        Ok(())
    }

    fn remove(&mut self, scope: &Scope, backend: Backend) -> Answer<()> {
        self.sessions.remove(&(scope.clone(), backend));
        Ok(())
    }

    fn sessions_of(&self, scope: &Scope) -> Answer<Vec<Registered>> {
        let all = self.sessions.iter().filter(|((of, _), _)| of == scope);
        Ok(all.map(|(_, session)| *session).collect())
    }

    fn scopes_of(&self, backend: Backend) -> Answer<Vec<Scope>> {
        let all = self.sessions.keys().filter(|(_, of)| *of == backend);
        Ok(all.map(|(scope, _)| scope.clone()).collect())
    }
}

impl Store {
    pub(super) fn rank(&self, scope: &Scope) -> Option<Rank> {
        self.marks.get(scope).map(|row| row.mark.rank())
    }

    pub(super) fn all_marks(&self) -> impl Iterator<Item = (Scope, Mark)> {
        let marks = self.marks.iter();
        marks.map(|(scope, row)| (scope.clone(), row.mark.clone()))
    }
}

/// The store, and what a run knows of it.
#[derive(Default)]
pub(super) struct Authority {
    pub(super) now: Store,
    pub(super) is_away: bool,
    pub(super) backup: Option<(Store, Duration)>,
    /// What a lagging read sees. Only without a guard.
    pub(super) lagging: Option<Store>,
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
