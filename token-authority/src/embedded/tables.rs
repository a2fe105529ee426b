//! Tables of the embedded store. [`Records`] has the steps on them.

use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};

use super::fault::{StepError, stored_scope};
use super::takeovers::Takeovers;
use crate::record::MarkRow;
use crate::rule::Records;
use crate::{Backend, Cluster, Incarnation, Mark, Registered, Scope, Token};

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

/// Open tables of a transaction.
pub(super) struct StoreTables<'txn> {
    meta: Table<'txn, &'static str, &'static [u8]>,
    marks: Table<'txn, &'static str, &'static [u8]>,
    sessions: Table<'txn, (&'static str, i32, i64), (u32, u64, i64)>,
    backends: Table<'txn, (i32, i64, &'static str), ()>,
    pub(super) takeovers: Takeovers<'txn>,
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

    pub(super) fn mark(&self, scope: &Scope) -> Result<Option<Mark>, StepError> {
        Ok(self.mark_row(scope)?.map(|row| row.mark))
    }
}

impl Records for StoreTables<'_> {
    type Error = StepError;

    fn cluster(&self) -> Result<Option<Cluster>, StepError> {
        match self.meta.get(CLUSTER)? {
            Some(json) => serde_json::from_slice(json.value())
                .map(Some)
                .map_err(|e| StepError::Record(format!("the cluster: {e}"))),
            None => Ok(None),
        }
    }

    fn put_cluster(&mut self, cluster: Cluster) -> Result<(), StepError> {
        let json = serde_json::to_vec(&cluster).map_err(|e| StepError::Record(e.to_string()))?;
        self.meta.insert(CLUSTER, json.as_slice())?;
        self.changed = true;
        Ok(())
    }

    fn mark_row(&self, scope: &Scope) -> Result<Option<MarkRow>, StepError> {
        match self.marks.get(scope.as_str())? {
            Some(value) => mark_row(scope, value.value()).map(Some),
            None => Ok(None),
        }
    }

    fn put_mark(&mut self, scope: &Scope, row: &MarkRow) -> Result<(), StepError> {
        let json = serde_json::to_vec(row).map_err(|e| StepError::Record(e.to_string()))?;
        self.marks.insert(scope.as_str(), json.as_slice())?;
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

    fn put_session(&mut self, scope: &Scope, session: Registered) -> Result<(), StepError> {
        let Backend { pid, started_us } = session.backend;
        let value = (
            session.incarnation.get(),
            session.token.get(),
            session.since,
        );
        self.sessions
            .insert((scope.as_str(), pid, started_us), value)?;
        self.backends
            .insert((pid, started_us, scope.as_str()), ())?;
        self.changed = true;
        Ok(())
    }

    fn remove(&mut self, scope: &Scope, backend: Backend) -> Result<(), StepError> {
        let Backend { pid, started_us } = backend;
        self.sessions.remove((scope.as_str(), pid, started_us))?;
        self.backends.remove((pid, started_us, scope.as_str()))?;
        self.changed = true;
        Ok(())
    }

    fn sessions_of(&self, scope: &Scope) -> Result<Vec<Registered>, StepError> {
        let name = scope.as_str();
        let all = (name, i32::MIN, i64::MIN)..=(name, i32::MAX, i64::MAX);
        let mut sessions = Vec::new();
        for entry in self.sessions.range(all)? {
            let (key, value) = entry?;
            let (_, pid, started_us) = key.value();
            sessions.push(registered(Backend { pid, started_us }, value.value())?);
        }
        Ok(sessions)
    }

    fn scopes_of(&self, backend: Backend) -> Result<Vec<Scope>, StepError> {
        let mut scopes = Vec::new();
        let from = (backend.pid, backend.started_us, "");
        for entry in self.backends.range(from..)? {
            let (key, _) = entry?;
            let (pid, started_us, scope) = key.value();
            if (Backend { pid, started_us }) != backend {
                break;
            }
            scopes.push(stored_scope(scope)?);
        }
        Ok(scopes)
    }
}

fn mark_row(scope: &Scope, json: &[u8]) -> Result<MarkRow, StepError> {
    serde_json::from_slice(json)
        .map_err(|e| StepError::Record(format!("mark of scope {scope}: {e}")))
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
