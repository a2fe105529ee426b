//! Reference for every store: the rule on maps.

use std::collections::BTreeMap;

use pgpalisade_authority::rule::{MarkRow, Records};
use pgpalisade_authority::{
    Backend, Cluster, LeaseId, LeaseStep, Leased, Mark, NoIncarnation, Rank, Registered, Scope,
};

/// A store in memory, of a single user.
#[derive(Debug, Default, Clone)]
pub struct MemoryStore {
    pub cluster: Option<Cluster>,
    pub marks: BTreeMap<Scope, MarkRow>,
    pub sessions: BTreeMap<(Scope, Backend), Registered>,
    leases: BTreeMap<Scope, LeaseId>,
}

impl MemoryStore {
    #[must_use]
    pub fn marks(&self) -> Vec<(Scope, Mark)> {
        let marks = self.marks.iter();
        marks
            .map(|(s, row)| (s.clone(), row.mark.clone()))
            .collect()
    }

    #[must_use]
    pub fn rank(&self, scope: &Scope) -> Option<Rank> {
        self.marks.get(scope).map(|row| row.mark.rank())
    }

    #[must_use]
    pub fn sessions(&self) -> Vec<(Scope, Registered)> {
        let sessions = self.sessions.iter();
        sessions
            .map(|((s, _), session)| (s.clone(), *session))
            .collect()
    }

    /// Takes a step with a lease that never lapses.
    pub fn lease(&mut self, scope: &Scope, holder: LeaseId, step: LeaseStep) -> Leased {
        match (self.leases.get(scope), step) {
            (None, LeaseStep::Acquire(_)) => self.leases.insert(scope.clone(), holder),
            (Some(own), LeaseStep::Release) if *own == holder => self.leases.remove(scope),
            _ => None,
        };
        let is_held = self.leases.get(scope) == Some(&holder);
        if is_held {
            Leased::Held
        } else {
            Leased::NotHeld
        }
    }
}

impl Records for MemoryStore {
    type Error = NoIncarnation;

    fn cluster(&self) -> Result<Option<Cluster>, NoIncarnation> {
        Ok(self.cluster)
    }

    fn put_cluster(&mut self, cluster: Cluster) -> Result<(), NoIncarnation> {
        self.cluster = Some(cluster);
        Ok(())
    }

    fn mark_row(&self, scope: &Scope) -> Result<Option<MarkRow>, NoIncarnation> {
        Ok(self.marks.get(scope).cloned())
    }

    fn put_mark(&mut self, scope: &Scope, row: &MarkRow) -> Result<(), NoIncarnation> {
        self.marks.insert(scope.clone(), row.clone());
        Ok(())
    }

    fn registered(&self, scope: &Scope, of: Backend) -> Result<Option<Registered>, NoIncarnation> {
        Ok(self.sessions.get(&(scope.clone(), of)).copied())
    }

    fn put_session(&mut self, scope: &Scope, session: Registered) -> Result<(), NoIncarnation> {
        self.sessions
            .insert((scope.clone(), session.backend), session);
        Ok(())
    }

    fn remove(&mut self, scope: &Scope, backend: Backend) -> Result<(), NoIncarnation> {
        self.sessions.remove(&(scope.clone(), backend));
        Ok(())
    }

    fn sessions_of(&self, scope: &Scope) -> Result<Vec<Registered>, NoIncarnation> {
        let all = self.sessions.iter().filter(|((of, _), _)| of == scope);
        Ok(all.map(|(_, session)| *session).collect())
    }

    fn scopes_of(&self, backend: Backend) -> Result<Vec<Scope>, NoIncarnation> {
        let all = self.sessions.keys().filter(|(_, of)| *of == backend);
        Ok(all.map(|(scope, _)| scope.clone()).collect())
    }
}
