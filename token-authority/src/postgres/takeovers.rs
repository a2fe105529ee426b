//! History of takeovers: one row for each scope, whose text is replaced as a whole.

use tokio_postgres::Row;

use super::Postgres;
use super::connection::{ConnectionError, get};
use super::options::SCHEMA;
use super::steps::{self, All, text};
use super::worker::Worker;
use crate::takeovers::History;
use crate::{AuthorityError, Scope, TakeoverRecord};

/// Attempts to record takeovers while other proxies record theirs.
const CONFLICTS_MAX: u32 = 64;

impl Postgres {
    pub(super) async fn note(
        &self,
        scope: &Scope,
        records: &[TakeoverRecord],
    ) -> Result<(), AuthorityError> {
        for _ in 0..CONFLICTS_MAX {
            let (sql, _) = histories(Some(scope));
            let read = self.rows((sql, |row| get::<String>(row, 1))).await?;
            let seen = read.into_iter().next();
            let json = seen.as_deref().map(str::as_bytes);
            let mut history = json.map_or_else(History::default, |json| History::read(scope, json));
            history.note(records);
            let (scope, text) = (scope.as_str().to_owned(), history.write());
            let replaced = self.alone(1, move |worker| {
                Box::pin(async move { worker.replace_history(scope, seen, text).await })
            });
            if replaced.await? {
                return Ok(());
            }
        }
        let why = format!("the takeovers of scope {scope} kept changing");
        Err(AuthorityError::Unavailable(why))
    }

    pub(super) async fn list(
        &self,
        of: Option<&Scope>,
    ) -> Result<Vec<(Scope, TakeoverRecord)>, AuthorityError> {
        Ok(History::list(self.rows(histories(of)).await?))
    }
}

impl Worker {
    async fn replace_history(
        &mut self,
        scope: String,
        seen: Option<String>,
        history: String,
    ) -> Result<bool, AuthorityError> {
        let own = [text(scope), text(seen), text(history)];
        let rows = self.step("note_takeover", &own, 1).await?;
        let replaced = rows.first().ok_or_else(ConnectionError::no_row);
        let replaced = replaced.and_then(|row| get(row, 0));
        replaced.map_err(|error| error.into_authority(self.place()))
    }
}

/// The history of a scope, or the latest ones.
pub(super) fn histories(of: Option<&Scope>) -> All<(Scope, History)> {
    let which = match of {
        // Scope names need no quoting.
        Some(scope) => format!("WHERE t.scope = '{scope}'"),
        None => format!("ORDER BY t.noted_at DESC LIMIT {}", TakeoverRecord::LISTED),
    };
    let sql = format!("SELECT t.scope, t.history FROM {SCHEMA}.takeovers t {which}");
    (sql, history)
}

fn history(row: &Row) -> Result<(Scope, History), ConnectionError> {
    let scope = steps::scope(row, 0)?;
    let history = History::read(&scope, get::<&str>(row, 1)?.as_bytes());
    Ok((scope, history))
}
