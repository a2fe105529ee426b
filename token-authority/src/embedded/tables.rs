//! Tables of the embedded store, and an authority's steps on them. All decisions are here.

use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};

use super::takeovers::Takeovers;
use crate::record::{Judged, MarkRow};
use crate::{
    Backend, Cluster, Declaration, DeclareOutcome, Declared, Drained, Enrolled, Incarnation, Mark,
    Rank, Registered, RepairRequest, Repaired, Scope, Token,
};

/// The format that this version writes. Any other is refused.
pub(super) const FORMAT: u32 = 3;

/// Format version, identity, and the cluster as JSON.
pub(super) const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
/// scope -> [`MarkRow`] as JSON.
const MARKS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("marks");
/// (scope, pid, started_us) -> (incarnation, token, since).
const SESSIONS: TableDefinition<'static, (&str, i32, i64), (u32, u64, i64)> =
    TableDefinition::new("sessions");
/// (pid, started_us, scope): the same sessions, by backend.
const BACKENDS: TableDefinition<'static, (i32, i64, &str), ()> = TableDefinition::new("backends");

const CLUSTER: &str = "cluster";
pub(super) const FORMAT_KEY: &str = "format";

#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error(transparent)]
    Redb(#[from] redb::Error),
    #[error("{0}")]
    Record(String),
    /// No incarnation number is left for the scope.
    #[error("the scope was repaired 4294967295 times and cannot be repaired again")]
    NoIncarnation,
}

macro_rules! fault_from {
    ($($kind:ty),*) => {$(
        impl From<$kind> for StepError {
            fn from(error: $kind) -> Self {
                Self::Redb(error.into())
            }
        }
    )*};
}
fault_from!(
    redb::StorageError,
    redb::TableError,
    redb::TransactionError,
    redb::CommitError
);

/// Open tables of a transaction.
pub(super) struct StoreTables<'txn> {
    meta: Table<'txn, &'static str, &'static [u8]>,
    marks: Table<'txn, &'static str, &'static [u8]>,
    sessions: Table<'txn, (&'static str, i32, i64), (u32, u64, i64)>,
    backends: Table<'txn, (i32, i64, &'static str), ()>,
    pub(super) takeovers: Takeovers<'txn>,
    /// Whether there is anything to commit.
    pub(super) changed: bool,
}

impl<'txn> StoreTables<'txn> {
    pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self, StepError> {
        Ok(Self {
            meta: txn.open_table(META)?,
            marks: txn.open_table(MARKS)?,
            sessions: txn.open_table(SESSIONS)?,
            backends: txn.open_table(BACKENDS)?,
            takeovers: Takeovers::open(txn)?,
            changed: false,
        })
    }

    /// See [`crate::Authority::enrol`].
    pub(super) fn enrol(&mut self, cluster: Cluster) -> Result<Enrolled, StepError> {
        match self.cluster()? {
            Some(recorded) if !cluster.follows(&recorded) => {
                return Ok(Enrolled::Refused { recorded });
            }
            Some(recorded) if recorded == cluster => {}
            _ => self.put_cluster(cluster)?,
        }
        Ok(Enrolled::Accepted)
    }

    /// See [`crate::Authority::cluster`].
    pub(super) fn cluster(&self) -> Result<Option<Cluster>, StepError> {
        match self.meta.get(CLUSTER)? {
            Some(json) => serde_json::from_slice(json.value())
                .map(Some)
                .map_err(|e| StepError::Record(format!("the cluster: {e}"))),
            None => Ok(None),
        }
    }

    /// See [`crate::Authority::recover`].
    pub(super) fn recover(
        &mut self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Result<Enrolled, StepError> {
        if let Some(recorded) = self.cluster()?
            && !cluster.recovers(seen, recorded)
        {
            return Ok(Enrolled::Refused { recorded });
        }
        self.put_cluster(cluster)?;
        for (scope, mark) in marks {
            let known = self.mark_row(scope)?;
            if known.is_none_or(|row| row.rank() < mark.rank()) {
                self.put_mark(scope, &MarkRow::raised(mark.clone()))?;
            }
        }
        Ok(Enrolled::Accepted)
    }

    /// See [`crate::Authority::declare`].
    pub(super) fn declare(
        &mut self,
        declaration: &Declaration,
        now: i64,
    ) -> Result<Declared, StepError> {
        let Declaration {
            scope,
            backend,
            cluster,
            ..
        } = declaration;
        let recorded = self.cluster()?;
        if recorded != Some(*cluster) {
            return Ok(Declared::OtherCluster { recorded });
        }
        let known = self.mark_row(scope)?;
        let (mut row, outcome) = match MarkRow::judge(known, declaration, now) {
            Judged::Stale(row) => return self.stale(declaration, row, now),
            Judged::Refused(declared) => return Ok(declared),
            Judged::Join(row) => (row, DeclareOutcome::Current),
            Judged::Raise(row) => {
                self.put_mark(scope, &row)?;
                (row, DeclareOutcome::Raised)
            }
        };
        let rank = row.rank();
        self.register(scope, rank, *backend, now)?;
        let lower = if row.drained {
            Vec::new()
        } else {
            self.lower(scope, rank)?
        };
        if lower.is_empty() && !row.drained {
            // No lower session. Recorded so that later declarations skip the scan.
            row.drained = true;
            self.put_mark(scope, &row)?;
        }
        Ok(Declared::Accepted {
            mark: row.mark,
            outcome,
            lower,
        })
    }

    /// Answers a declaration below the mark, and registers the session if the declaration asks for it.
    fn stale(
        &mut self,
        declaration: &Declaration,
        mut row: MarkRow,
        now: i64,
    ) -> Result<Declared, StepError> {
        if let Some(token) = declaration.stale_token() {
            let rank = row.rank_of(token);
            self.register(&declaration.scope, rank, declaration.backend, now)?;
            if row.drained {
                row.drained = false;
                self.put_mark(&declaration.scope, &row)?;
            }
        }
        Ok(Declared::Stale { mark: row.mark })
    }

    /// See [`crate::Authority::drained`].
    pub(super) fn drained(
        &mut self,
        scope: &Scope,
        rank: Rank,
        gone: &[Backend],
    ) -> Result<Drained, StepError> {
        for backend in gone {
            let registered = self.registered(scope, *backend)?;
            if registered.is_some_and(|session| session.rank() < rank) {
                self.remove(scope.as_str(), *backend)?;
            }
        }
        let left = self.lower(scope, rank)?;
        if !left.is_empty() {
            return Ok(Drained::Left(left));
        }
        if let Some(mut row) = self.mark_row(scope)?
            && row.rank() == rank
            && !row.drained
        {
            row.drained = true;
            self.put_mark(scope, &row)?;
        }
        Ok(Drained::Complete)
    }

    /// See [`crate::Authority::repair`].
    pub(super) fn repair(&mut self, request: &RepairRequest) -> Result<Repaired, StepError> {
        let scope = &request.scope;
        let recorded = self.cluster()?;
        if recorded != Some(request.cluster) {
            return Ok(Repaired::OtherCluster { recorded });
        }
        let row = match self.mark_row(scope)? {
            Some(row) if row.mark.is_after(request) => row,
            Some(row) if row.rank() == request.expected => {
                let repaired = Mark::repaired(request).ok_or(StepError::NoIncarnation)?;
                let row = MarkRow::raised(repaired);
                self.put_mark(scope, &row)?;
                row
            }
            other => {
                let mark = other.map(|row| row.mark);
                return Ok(Repaired::Changed { mark });
            }
        };
        Ok(Repaired::Done {
            lower: self.lower(scope, row.rank())?,
            mark: row.mark,
        })
    }

    /// See [`crate::Authority::forget`].
    pub(super) fn forget(&mut self, gone: &[Backend]) -> Result<(), StepError> {
        for backend in gone {
            let mut scopes = Vec::new();
            let from = (backend.pid, backend.started_us, "");
            for entry in self.backends.range(from..)? {
                let (key, _) = entry?;
                let (pid, started_us, scope) = key.value();
                if (Backend { pid, started_us }) != *backend {
                    break;
                }
                scopes.push(scope.to_owned());
            }
            for scope in scopes {
                self.remove(&scope, *backend)?;
            }
        }
        Ok(())
    }

    /// See [`crate::Authority::sessions`].
    pub(super) fn sessions(&self) -> Result<Vec<(Scope, Registered)>, StepError> {
        let mut all = Vec::new();
        for entry in self.sessions.iter()? {
            let (key, value) = entry?;
            let (scope, pid, started_us) = key.value();
            let backend = Backend { pid, started_us };
            all.push((stored_scope(scope)?, registered(backend, value.value())?));
        }
        Ok(all)
    }

    /// See [`crate::Authority::marks`].
    pub(super) fn marks(&self) -> Result<Vec<(Scope, Mark)>, StepError> {
        let mut all = Vec::new();
        for entry in self.marks.iter()? {
            let (key, value) = entry?;
            let scope = stored_scope(key.value())?;
            let mark = mark_row(&scope, value.value())?.mark;
            all.push((scope, mark));
        }
        Ok(all)
    }

    /// See [`crate::Authority::mark`].
    pub(super) fn mark(&self, scope: &Scope) -> Result<Option<Mark>, StepError> {
        Ok(self.mark_row(scope)?.map(|row| row.mark))
    }

    fn mark_row(&self, scope: &Scope) -> Result<Option<MarkRow>, StepError> {
        match self.marks.get(scope.as_str())? {
            Some(value) => mark_row(scope, value.value()).map(Some),
            None => Ok(None),
        }
    }

    fn put_cluster(&mut self, cluster: Cluster) -> Result<(), StepError> {
        let json = serde_json::to_vec(&cluster).map_err(|e| StepError::Record(e.to_string()))?;
        self.meta.insert(CLUSTER, json.as_slice())?;
        self.changed = true;
        Ok(())
    }

    fn put_mark(&mut self, scope: &Scope, row: &MarkRow) -> Result<(), StepError> {
        let json = serde_json::to_vec(row).map_err(|e| StepError::Record(e.to_string()))?;
        self.marks.insert(scope.as_str(), json.as_slice())?;
        self.changed = true;
        Ok(())
    }

    fn register(
        &mut self,
        scope: &Scope,
        rank: Rank,
        backend: Backend,
        now: i64,
    ) -> Result<(), StepError> {
        // Never down: a session that moved up and now declares a stale token stays at its rank.
        let registered = self.registered(scope, backend)?;
        if registered.is_some_and(|session| session.rank() >= rank) {
            return Ok(());
        }
        let key = (scope.as_str(), backend.pid, backend.started_us);
        let Rank { incarnation, token } = rank;
        self.sessions
            .insert(key, (incarnation.get(), token.get(), now))?;
        self.backends
            .insert((backend.pid, backend.started_us, scope.as_str()), ())?;
        self.changed = true;
        Ok(())
    }

    fn registered(&self, scope: &Scope, backend: Backend) -> Result<Option<Registered>, StepError> {
        let key = (scope.as_str(), backend.pid, backend.started_us);
        match self.sessions.get(key)? {
            Some(value) => registered(backend, value.value()).map(Some),
            None => Ok(None),
        }
    }

    fn remove(&mut self, scope: &str, backend: Backend) -> Result<(), StepError> {
        let key = (scope, backend.pid, backend.started_us);
        self.sessions.remove(key)?;
        self.backends
            .remove((backend.pid, backend.started_us, scope))?;
        self.changed = true;
        Ok(())
    }

    fn lower(&self, scope: &Scope, rank: Rank) -> Result<Vec<Registered>, StepError> {
        let name = scope.as_str();
        let mut lower = Vec::new();
        for entry in self
            .sessions
            .range((name, i32::MIN, i64::MIN)..=(name, i32::MAX, i64::MAX))?
        {
            let (key, value) = entry?;
            let (_, pid, started_us) = key.value();
            let found = registered(Backend { pid, started_us }, value.value())?;
            if found.rank() < rank {
                lower.push(found);
            }
        }
        Ok(lower)
    }
}

fn mark_row(scope: &Scope, json: &[u8]) -> Result<MarkRow, StepError> {
    serde_json::from_slice(json)
        .map_err(|e| StepError::Record(format!("mark of scope {scope}: {e}")))
}

pub(super) fn stored_scope(name: &str) -> Result<Scope, StepError> {
    Scope::new(name).map_err(|e| StepError::Record(format!("scope {name:?}: {e}")))
}

fn registered(
    backend: Backend,
    (incarnation, token, since): (u32, u64, i64),
) -> Result<Registered, StepError> {
    let token =
        Token::new(token).map_err(|e| StepError::Record(format!("session {backend}: {e}")))?;
    Ok(Registered {
        backend,
        token,
        incarnation: Incarnation::new(incarnation),
        since,
    })
}
