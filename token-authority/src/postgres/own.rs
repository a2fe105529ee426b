//! Transactions that first check the ownership of the store.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use futures_util::Stream as _;
use futures_util::future::maybe_done;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tokio_postgres::Row;

use super::connection::{Arguments, ConnectionError, StoreConnection};
use super::options::{OWN, SCHEMA};
use super::steps::read;
use crate::owned::{PREPARED_GUARD, Strange};

/// Locks of a transaction before it checks the ownership.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Locks {
    /// The only table of every format, for reading.
    Identity,
    /// All tables, for reading.
    Look,
    /// All tables, for writing everything but the recorded cluster.
    Step,
    /// All tables, for writing. EXCLUSIVE at once: two steps with weaker locks would wait for each other.
    Cluster,
}

impl Locks {
    fn begin(self) -> String {
        let (store, others) = match self {
            Self::Identity => ("ACCESS SHARE", None),
            Self::Look => ("ACCESS SHARE", Some("ACCESS SHARE")),
            Self::Step => ("ACCESS SHARE", Some("ROW EXCLUSIVE")),
            Self::Cluster => ("EXCLUSIVE", Some("ROW EXCLUSIVE")),
        };
        let lock =
            |table: &str, mode: &str| format!("LOCK TABLE ONLY {SCHEMA}.{table} IN {mode} MODE; ");
        let mut begin = "BEGIN ISOLATION LEVEL READ COMMITTED; ".to_owned();
        begin.push_str(&lock("store", store));
        if let Some(mode) = others {
            let others = OWN.tables.iter().filter(|table| **table != "store");
            begin.extend(others.map(|table| lock(table, mode)));
        }
        begin.push_str(PREPARED_GUARD);
        begin
    }
}

impl StoreConnection {
    /// Runs a statement in a transaction that first checks the store's ownership, and waits for its commit. Each part
    /// of the answer must arrive within `bound`.
    ///
    /// The whole transaction is sent before the first answer, so a proxy that stops in the middle holds no lock. If
    /// the guard fails, the server runs nothing more.
    pub(super) async fn own(
        &self,
        bound: Duration,
        locks: Locks,
        sql: &str,
        arguments: &Arguments<'_>,
    ) -> Result<Vec<Row>, ConnectionError> {
        let silence = |_| ConnectionError::Broken(format!("no answer within {bound:?}"));
        let turn = timeout(bound, self.turn.lock()).await.map_err(silence)?;
        let begin = locks.begin();
        let arguments = arguments.iter().map(|(value, of)| (*value, of.clone()));
        let mut begun = pin!(self.client.batch_execute(&begin));
        let mut asked = pin!(maybe_done(self.client.query_typed_raw(sql, arguments)));
        let mut ended = pin!(maybe_done(self.client.batch_execute("COMMIT")));
        let sent = poll_fn(|context| {
            // A future sends its message at its first poll.
            let begun = begun.as_mut().poll(context);
            let _ = asked.as_mut().poll(context);
            let _ = ended.as_mut().poll(context);
            begun
        });
        if let Err(error) = timeout(bound, sent).await.map_err(silence)? {
            drop(turn);
            return Err(self.strange(bound).await.unwrap_or(error.into()));
        }
        timeout(bound, asked.as_mut()).await.map_err(silence)?;
        let answer = asked
            .as_mut()
            .take_output()
            .ok_or_else(ConnectionError::no_row)?;
        let (mut answer, mut rows) = (pin!(answer?), Vec::new());
        loop {
            let next = poll_fn(|context| answer.as_mut().poll_next(context));
            match timeout(bound, next).await.map_err(silence)? {
                Some(row) => rows.push(row?),
                None => break,
            }
        }
        timeout(bound, ended.as_mut()).await.map_err(silence)?;
        ended
            .as_mut()
            .take_output()
            .ok_or_else(ConnectionError::no_row)??;
        self.unwarned()?;
        Ok(rows)
    }

    /// Reads all records of a kind.
    pub(super) async fn all<T: DeserializeOwned>(
        &self,
        bound: Duration,
        sql: &str,
    ) -> Result<Vec<T>, ConnectionError> {
        let rows = self.own(bound, Locks::Look, sql, &[]).await?;
        rows.iter().map(read).collect()
    }

    pub(super) async fn strange(&self, bound: Duration) -> Option<ConnectionError> {
        let asked = self.ask(bound, &OWN.question(), &[]).await;
        match asked.map(|rows| Strange::read(&OWN, &rows)) {
            Ok(Ok(strange)) => strange.map(ConnectionError::Strange),
            Ok(Err(error)) => Some(error.into()),
            Err(error) => Some(error),
        }
    }
}
