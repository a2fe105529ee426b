//! History of takeovers: one row for each scope, whose text is replaced as a whole.

use tokio_postgres::Row;

use super::Postgres;
use super::connection::{ConnectionError, get};
use super::options::SCHEMA;
use super::steps::{self, All, text};
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
            let arguments = [text(scope.to_string()), text(seen), text(history.write())];
            let replaced = self.alone("note_takeover", arguments, 1, steps::is_true);
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
