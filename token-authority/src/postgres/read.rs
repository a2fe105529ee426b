//! Reads a PostgreSQL store without changing it.

use std::time::Duration;

use super::connection::{ConnectionError, Purpose, StoreConnection};
use super::open::{PostgresOpenError, find, open_error};
use super::options::Options;
use super::own::Locks;
use super::steps::{self, All};
use super::takeovers::histories;
use crate::Contents;
use crate::takeovers::History;

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
        // Sessions first: the mark read after them is never below one of their tokens.
        let sessions = all(&link, bound, steps::all_sessions()).await?;
        let clusters = all(&link, bound, steps::all_clusters()).await?;
        Ok(Contents {
            identity,
            cluster: clusters.into_iter().next().flatten(),
            marks: all(&link, bound, steps::all_marks()).await?,
            sessions,
            takeovers: History::list(all(&link, bound, histories(None)).await?),
        })
    };
    contents.await.map(Some).map_err(failed)
}

async fn all<T>(
    link: &StoreConnection,
    bound: Duration,
    (sql, read): All<T>,
) -> Result<Vec<T>, ConnectionError> {
    let rows = link.own(bound, Locks::Look, &sql, &[]).await?;
    rows.iter().map(read).collect()
}
