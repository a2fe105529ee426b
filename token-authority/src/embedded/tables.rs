//! The tables of the embedded store, and the steps of an authority on them. No decision is taken elsewhere.

use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};

use crate::record::MarkRow;
use crate::{
    Backend, Cluster, Declaration, Declared, Drained, Enrolled, Mark, Outcome, Registered, Scope,
    Token,
};

/// Format version, identity, and the cluster as JSON.
pub(super) const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
/// scope -> [`MarkRow`] as JSON.
const MARKS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("marks");
/// (scope, pid, started_us) -> (token, since).
const SESSIONS: TableDefinition<'static, (&str, i32, i64), (u64, i64)> =
    TableDefinition::new("sessions");
/// (pid, started_us, scope): the same sessions, to find all records of a backend.
const BACKENDS: TableDefinition<'static, (i32, i64, &str), ()> = TableDefinition::new("backends");

/// The key of the cluster in [`META`].
const CLUSTER: &str = "cluster";

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The file cannot be read or written.
    #[error(transparent)]
    Redb(#[from] redb::Error),
    /// A record makes no sense.
    #[error("{0}")]
    Record(String),
}

macro_rules! fault_from {
    ($($kind:ty),*) => {$(
        impl From<$kind> for Fault {
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

/// The open tables of one transaction.
pub(super) struct Tables<'txn> {
    meta: Table<'txn, &'static str, &'static [u8]>,
    marks: Table<'txn, &'static str, &'static [u8]>,
    sessions: Table<'txn, (&'static str, i32, i64), (u64, i64)>,
    backends: Table<'txn, (i32, i64, &'static str), ()>,
    /// Whether there is anything to commit.
    pub(super) changed: bool,
}

impl<'txn> Tables<'txn> {
    pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self, Fault> {
        Ok(Self {
            meta: txn.open_table(META)?,
            marks: txn.open_table(MARKS)?,
            sessions: txn.open_table(SESSIONS)?,
            backends: txn.open_table(BACKENDS)?,
            changed: false,
        })
    }

    /// See [`crate::Authority::enrol`].
    pub(super) fn enrol(&mut self, cluster: Cluster) -> Result<Enrolled, Fault> {
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
    pub(super) fn cluster(&self) -> Result<Option<Cluster>, Fault> {
        match self.meta.get(CLUSTER)? {
            Some(json) => serde_json::from_slice(json.value())
                .map(Some)
                .map_err(|e| Fault::Record(format!("the cluster: {e}"))),
            None => Ok(None),
        }
    }

    /// See [`crate::Authority::recover`].
    pub(super) fn recover(
        &mut self,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Result<(), Fault> {
        self.put_cluster(cluster)?;
        for (scope, mark) in marks {
            if self.mark(scope)?.is_none_or(|row| row.token < mark.token) {
                self.put_mark(scope, &MarkRow::raised(mark))?;
            }
        }
        Ok(())
    }

    /// See [`crate::Authority::declare`].
    pub(super) fn declare(
        &mut self,
        declaration: &Declaration<'_>,
        now: i64,
    ) -> Result<Declared, Fault> {
        let Declaration {
            scope,
            token,
            backend,
            cluster,
            by,
        } = *declaration;
        let recorded = self.cluster()?;
        if recorded != Some(cluster) {
            return Ok(Declared::OtherCluster { recorded });
        }
        let (mut row, outcome) = match self.mark(scope)? {
            Some(row) if row.token > token => return Ok(Declared::Stale { mark: row.mark() }),
            Some(row) if row.token == token => (row, Outcome::Current),
            _ => {
                let row = MarkRow {
                    token,
                    raised_at: now,
                    raised_by: by.to_owned(),
                    drained: false,
                };
                self.put_mark(scope, &row)?;
                (row, Outcome::Raised)
            }
        };
        self.register(scope, token, backend, now)?;
        let lower = if row.drained {
            Vec::new()
        } else {
            self.lower(scope, token)?
        };
        if lower.is_empty() && !row.drained {
            // Nothing to drain. Noted, so that the sessions that follow need not be looked through each time.
            row.drained = true;
            self.put_mark(scope, &row)?;
        }
        Ok(Declared::Accepted {
            mark: row.mark(),
            outcome,
            lower,
        })
    }

    /// See [`crate::Authority::drained`].
    pub(super) fn drained(
        &mut self,
        scope: &Scope,
        token: Token,
        gone: &[Backend],
    ) -> Result<Drained, Fault> {
        for backend in gone {
            let key = (scope.as_str(), backend.pid, backend.started_us);
            let lower = self
                .sessions
                .get(key)?
                .is_some_and(|row| row.value().0 < token.get());
            if lower {
                self.remove(scope.as_str(), *backend)?;
            }
        }
        let left = self.lower(scope, token)?;
        if !left.is_empty() {
            return Ok(Drained::Left(left));
        }
        if let Some(mut row) = self.mark(scope)?
            && row.token == token
            && !row.drained
        {
            row.drained = true;
            self.put_mark(scope, &row)?;
        }
        Ok(Drained::Complete)
    }

    /// See [`crate::Authority::forget`].
    pub(super) fn forget(&mut self, gone: &[Backend]) -> Result<(), Fault> {
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
    pub(super) fn sessions(&self) -> Result<Vec<(Scope, Registered)>, Fault> {
        let mut all = Vec::new();
        for entry in self.sessions.iter()? {
            let (key, value) = entry?;
            let (scope, pid, started_us) = key.value();
            all.push((
                stored_scope(scope)?,
                registered(pid, started_us, value.value())?,
            ));
        }
        Ok(all)
    }

    /// See [`crate::Authority::marks`].
    pub(super) fn marks(&self) -> Result<Vec<(Scope, Mark)>, Fault> {
        let mut all = Vec::new();
        for entry in self.marks.iter()? {
            let (key, value) = entry?;
            let scope = stored_scope(key.value())?;
            let mark = mark_row(&scope, value.value())?.mark();
            all.push((scope, mark));
        }
        Ok(all)
    }

    fn mark(&self, scope: &Scope) -> Result<Option<MarkRow>, Fault> {
        match self.marks.get(scope.as_str())? {
            Some(value) => mark_row(scope, value.value()).map(Some),
            None => Ok(None),
        }
    }

    fn put_cluster(&mut self, cluster: Cluster) -> Result<(), Fault> {
        let json = serde_json::to_vec(&cluster).map_err(|e| Fault::Record(e.to_string()))?;
        self.meta.insert(CLUSTER, json.as_slice())?;
        self.changed = true;
        Ok(())
    }

    fn put_mark(&mut self, scope: &Scope, row: &MarkRow) -> Result<(), Fault> {
        let json = serde_json::to_vec(row).map_err(|e| Fault::Record(e.to_string()))?;
        self.marks.insert(scope.as_str(), json.as_slice())?;
        self.changed = true;
        Ok(())
    }

    fn register(
        &mut self,
        scope: &Scope,
        token: Token,
        backend: Backend,
        now: i64,
    ) -> Result<(), Fault> {
        let key = (scope.as_str(), backend.pid, backend.started_us);
        // The caller has seen that the mark is `token`, so what is registered is not above it.
        let known = self
            .sessions
            .get(key)?
            .is_some_and(|row| row.value().0 >= token.get());
        if !known {
            self.sessions.insert(key, (token.get(), now))?;
            self.backends
                .insert((backend.pid, backend.started_us, scope.as_str()), ())?;
            self.changed = true;
        }
        Ok(())
    }

    fn remove(&mut self, scope: &str, backend: Backend) -> Result<(), Fault> {
        self.sessions
            .remove((scope, backend.pid, backend.started_us))?;
        self.backends
            .remove((backend.pid, backend.started_us, scope))?;
        self.changed = true;
        Ok(())
    }

    fn lower(&self, scope: &Scope, token: Token) -> Result<Vec<Registered>, Fault> {
        let name = scope.as_str();
        let mut lower = Vec::new();
        for entry in self
            .sessions
            .range((name, i32::MIN, i64::MIN)..=(name, i32::MAX, i64::MAX))?
        {
            let (key, value) = entry?;
            let (_, pid, started_us) = key.value();
            let found = registered(pid, started_us, value.value())?;
            if found.token < token {
                lower.push(found);
            }
        }
        Ok(lower)
    }
}

fn mark_row(scope: &Scope, json: &[u8]) -> Result<MarkRow, Fault> {
    serde_json::from_slice(json).map_err(|e| Fault::Record(format!("mark of scope {scope}: {e}")))
}

fn stored_scope(name: &str) -> Result<Scope, Fault> {
    Scope::new(name).map_err(|e| Fault::Record(format!("scope {name:?}: {e}")))
}

fn registered(pid: i32, started_us: i64, value: (u64, i64)) -> Result<Registered, Fault> {
    let backend = Backend { pid, started_us };
    let token =
        Token::new(value.0).map_err(|e| Fault::Record(format!("session {backend}: {e}")))?;
    Ok(Registered {
        backend,
        token,
        since: value.1,
    })
}
