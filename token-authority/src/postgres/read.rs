//! Reads a PostgreSQL store without changing it.

use super::connection::{ConnectionError, Purpose, StoreConnection};
use super::open::{PostgresOpenError, find, open_error};
use super::options::{Options, SCHEMA};
use super::own::Locks;
use super::steps::{self, CLUSTER, MARK, SESSION};
use super::takeovers::{HISTORY, history};
use crate::takeovers::History;
use crate::{Contents, TakeoverRecord};

/// Reads the store, if any. Creates nothing and leaves no trace. Takes at most a few times the options' timeout.
///
/// # Errors
///
/// As [`super::Postgres::connect`].
pub async fn read(options: &Options) -> Result<Option<Contents>, PostgresOpenError> {
    let failed = |error| open_error(options, error);
    let link = StoreConnection::connect(options, Purpose::Inspect)
        .await
        .map_err(failed)?;
    let Some(identity) = find(&link, options).await? else {
        return Ok(None);
    };
    let bound = options.timeout();
    let contents = async {
        let ask = async |sql: String| link.own(bound, Locks::Look, &sql, &[]).await;
        // Sessions first: the mark read after them is never below one of their tokens.
        let sessions = format!("SELECT s.scope, {SESSION} FROM {SCHEMA}.sessions s");
        let sessions = ask(sessions).await?;
        let cluster = format!("SELECT {CLUSTER} FROM {SCHEMA}.store s");
        let cluster = ask(cluster).await?;
        let marks = format!("SELECT m.scope, {MARK} FROM {SCHEMA}.marks m");
        let marks = ask(marks).await?;
        let latest = format!(
            "{HISTORY} FROM {SCHEMA}.takeovers t ORDER BY t.noted_at DESC LIMIT {}",
            TakeoverRecord::LISTED
        );
        let takeovers = ask(latest).await?;
        let takeovers = takeovers
            .iter()
            .map(history)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Contents {
            identity,
            cluster: match cluster.first() {
                Some(row) => steps::cluster(row, 0)?,
                None => None,
            },
            marks: marks
                .iter()
                .map(|row| Ok((steps::scope(row, 0)?, steps::mark(row, 1)?)))
                .collect::<Result<_, ConnectionError>>()?,
            sessions: sessions
                .iter()
                .map(|row| Ok((steps::scope(row, 0)?, steps::registered(row, 1)?)))
                .collect::<Result<_, ConnectionError>>()?,
            takeovers: History::list(takeovers),
        })
    };
    contents.await.map(Some).map_err(failed)
}
