//! Changes in the store: announced by NOTIFY, and polled every few seconds in case a notification was lost.
//!
//! A notification only says that something changed. Every mark carries the transaction that raised it. Each poll
//! reads marks at or above the horizon of the previous poll, the oldest transaction in progress at that time
//! (`pg_snapshot_xmin`): all transactions below it had ended and were seen. So no order of commits hides a change,
//! and little is read twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_postgres::types::Type;

use super::connection::{Arguments, ConnectionError, Purpose, StoreConnection};
use super::open;
use super::options::{Options, SCHEMA};
use super::own::Locks;
use super::steps;
use super::worker::Backoff;
use crate::watchers::Watchers;
use crate::{Answer, AuthorityError, AuthorityId, Change, Cluster, Mark, Rank, Scope};

/// Interval of polls without notifications.
pub(super) const LOOK: Duration = Duration::from_secs(2);

/// Reading side of the store: one connection for polls and all other reads.
pub(super) struct StoreReader {
    options: Options,
    identity: AuthorityId,
    /// Runtime that opened the store. A call may come from a runtime that ends before the connection does.
    home: Handle,
    link: tokio::sync::Mutex<Option<Arc<StoreConnection>>>,
    pub(super) watchers: Watchers,
}

#[derive(Debug)]
pub(super) struct WatchState {
    /// `None` before the first poll, which reads no marks.
    horizon: Option<String>,
    cluster: Option<Cluster>,
    /// Marks of the last poll. While an old transaction holds the horizon back, every poll reads them again.
    marks: HashMap<Scope, Rank>,
}

/// The horizon, the cluster, and a changed mark, if any.
type Looked = (String, Option<Cluster>, Option<Scope>, Option<Mark>);

impl StoreReader {
    pub(super) fn new(options: Options, identity: AuthorityId) -> Self {
        Self {
            options,
            identity,
            home: Handle::current(),
            link: tokio::sync::Mutex::default(),
            watchers: Watchers::default(),
        }
    }

    pub(super) async fn link(&self) -> Answer<Arc<StoreConnection>> {
        let mut current = self.link.lock().await;
        if let Some(link) = current.as_ref()
            && !link.is_closed()
        {
            return Ok(Arc::clone(link));
        }
        *current = None;
        let (options, identity) = (self.options.clone(), self.identity);
        let connecting = self.home.spawn(async move {
            let link = StoreConnection::connect(&options, Purpose::Watch)
                .await
                .map_err(|error| error.into_authority(&options.to_string()))?;
            open::verify(&link, &options, identity).await?;
            Ok::<_, AuthorityError>(link)
        });
        // The task ends otherwise only with its runtime.
        let connected = connecting.await.map_err(|_| AuthorityError::Closed)?;
        let link = Arc::new(connected?);
        *current = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Drops a connection that does not answer.
    pub(super) async fn discard(&self, broken: &Arc<StoreConnection>) {
        let mut current = self.link.lock().await;
        if current
            .as_ref()
            .is_some_and(|link| Arc::ptr_eq(link, broken))
        {
            *current = None;
        }
    }

    pub(super) async fn begin(&self) -> Answer<WatchState> {
        let mut told = WatchState {
            horizon: None,
            cluster: None,
            marks: HashMap::new(),
        };
        let link = self.link().await?;
        let looked = self.look(&link, &mut told).await;
        looked.map_err(|error| error.into_authority(&self.options.to_string()))?;
        Ok(told)
    }

    /// Tells the watchers, until the store is closed.
    pub(super) async fn run(self: Arc<Self>, mut told: WatchState) {
        let mut backoff = Backoff::default();
        loop {
            match self.link().await {
                Ok(link) => match self.look(&link, &mut told).await {
                    Ok(changes) => {
                        backoff.succeeded();
                        self.watchers.tell(&changes).await;
                        let _ = tokio::time::timeout(LOOK, link.heard.changed.notified()).await;
                        continue;
                    }
                    Err(error) => {
                        tracing::debug!(%error, authority = %self.options, "authority: cannot look for changes");
                        self.discard(&link).await;
                    }
                },
                Err(AuthorityError::Closed) => return,
                Err(error) => {
                    tracing::debug!(%error, "authority: cannot look for changes");
                }
            }
            backoff.failed();
            backoff.wait().await;
        }
    }

    /// Changes since the last poll.
    async fn look(
        &self,
        link: &StoreConnection,
        told: &mut WatchState,
    ) -> Result<Vec<Change>, ConnectionError> {
        // If a restored server's transactions are below the horizon, every mark is read.
        let sql = format!(
            "SELECT json_build_array(
                pg_snapshot_xmin(pg_current_snapshot())::text, {}, m.scope, {})::text \
             FROM {SCHEMA}.store s LEFT JOIN {SCHEMA}.marks m ON m.changed >= CASE \
                WHEN pg_snapshot_xmax(pg_current_snapshot()) < $1::text::xid8 THEN '0' ELSE $1::text::xid8 END",
            steps::recorded(),
            steps::mark("m.")
        );
        let arguments: &Arguments<'_> = &[(&told.horizon, Type::TEXT)];
        let bound = self.options.timeout;
        let rows = link.own(bound, Locks::Look, &sql, arguments).await?;
        let rows: Result<Vec<Looked>, _> = rows.iter().map(steps::read).collect();
        let rows = rows?;
        let (horizon, cluster, ..) = rows.first().cloned().ok_or_else(ConnectionError::no_row)?;
        let (mut changes, mut marks) = (Vec::new(), HashMap::new());
        if let Some(cluster) = cluster
            && told.cluster != Some(cluster)
            && told.horizon.is_some()
        {
            changes.push(Change::Cluster(cluster));
        }
        for row in rows {
            if let (.., Some(scope), Some(mark)) = row {
                marks.insert(scope.clone(), mark.rank());
                if told.marks.get(&scope) != Some(&mark.rank()) {
                    changes.push(Change::Mark(scope, mark));
                }
            }
        }
        told.cluster = cluster;
        told.marks = marks;
        told.horizon = Some(horizon);
        Ok(changes)
    }
}
