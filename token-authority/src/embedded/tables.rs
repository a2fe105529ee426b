//! Tables of the embedded store. [`Records`] has the steps on them.

use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};

use super::fault::{StepError, stored_scope};
use crate::record::{MarkRow, json};
use crate::rule::Records;
use crate::takeovers::History;
use crate::{Backend, Cluster, Incarnation, Mark, Registered, Scope, TakeoverRecord, Token};

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

/// scope -> time of the last record, and the [`History`] as JSON, replaced as a whole.
const TAKEOVERS: TableDefinition<'static, &str, (i64, &str)> = TableDefinition::new("takeovers");
/// (time of the last record, scope), to find the scopes with the latest records.
const NOTED: TableDefinition<'static, (i64, &str), ()> = TableDefinition::new("takeovers_noted");

const CLUSTER: &str = "cluster";
pub(super) const FORMAT_KEY: &str = "format";

/// Open tables of a transaction.
pub(super) struct StoreTables<'txn> {
    meta: Table<'txn, &'static str, &'static [u8]>,
    marks: Table<'txn, &'static str, &'static [u8]>,
    sessions: Table<'txn, (&'static str, i32, i64), (u32, u64, i64)>,
    backends: Table<'txn, (i32, i64, &'static str), ()>,
    takeovers: Table<'txn, &'static str, (i64, &'static str)>,
    noted: Table<'txn, (i64, &'static str), ()>,
    pub(super) changed: bool,
}

impl<'txn> StoreTables<'txn> {
    pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self, StepError> {
        Ok(Self {
            meta: txn.open_table(META)?,
            marks: txn.open_table(MARKS)?,
            sessions: txn.open_table(SESSIONS)?,
            backends: txn.open_table(BACKENDS)?,
            takeovers: txn.open_table(TAKEOVERS)?,
            noted: txn.open_table(NOTED)?,
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

    pub(super) fn note(
        &mut self,
        scope: &Scope,
        records: &[TakeoverRecord],
        now: i64,
    ) -> Result<(), StepError> {
        let (before, history) = self.history(scope)?.unzip();
        if let Some(before) = before {
            self.noted.remove((before, scope.as_str()))?;
        }
        let mut history = history.unwrap_or_default();
        history.note(records);
        let history = json(&history);
        self.takeovers
            .insert(scope.as_str(), (now, history.as_str()))?;
        self.noted.insert((now, scope.as_str()), ())?;
        self.changed = true;
        Ok(())
    }

    pub(super) fn takeovers(
        &self,
        of: Option<&Scope>,
    ) -> Result<Vec<(Scope, TakeoverRecord)>, StepError> {
        let mut scopes: Vec<Scope> = of.cloned().into_iter().collect();
        if of.is_none() {
            for entry in self.noted.iter()?.rev().take(TakeoverRecord::LISTED) {
                let (key, _) = entry?;
                scopes.push(stored_scope(key.value().1)?);
            }
        }
        let mut all = Vec::new();
        for scope in scopes {
            if let Some((_, history)) = self.history(&scope)? {
                all.push((scope, history));
            }
        }
        Ok(History::list(all))
    }

    fn history(&self, scope: &Scope) -> Result<Option<(i64, History)>, StepError> {
        let stored = self.takeovers.get(scope.as_str())?;
        Ok(stored.map(|stored| {
            let (noted, json) = stored.value();
            (noted, History::read(scope, json.as_bytes()))
        }))
    }
}

impl Records for StoreTables<'_> {
    type Error = StepError;

    fn cluster(&self) -> Result<Option<Cluster>, StepError> {
        let Some(stored) = self.meta.get(CLUSTER)? else {
            return Ok(None);
        };
        serde_json::from_slice(stored.value())
            .map_err(|e| StepError::Record(format!("the cluster: {e}")))
    }

    fn put_cluster(&mut self, cluster: Cluster) -> Result<(), StepError> {
        self.meta.insert(CLUSTER, json(&cluster).as_bytes())?;
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
        let row = json(row);
        self.marks.insert(scope.as_str(), row.as_bytes())?;
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
