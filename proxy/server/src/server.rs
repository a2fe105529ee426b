//! The server as a whole: its threads, and their orderly end.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgpalisade_fence::Fence;
use pgpalisade_rejection_log::RejectionLog;
use pgpalisade_takeover::Takeover;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::accept::Accepting;
use crate::accounts::Logins;
use crate::certificates::Certificates;
use crate::classification::Classification;
use crate::client_table::ClientTable;
use crate::forced_end::Cause;
use crate::leadership::{Grant, Leaderships};
use crate::listener::Listener;
use crate::metrics::Metrics;
use crate::pause::Pause;
use crate::pending_logins::PendingLogins;
use crate::pooling::{Pool, Pooling};
use crate::timers::Timers;
use crate::transport::{Batching, allowed_batching};
use crate::worker::{ClientLimits, ClusterServers, Ending, WorkerContext};
use crate::worker_thread::WorkerHandle;

/// Time for a first transaction of clients that connected just before the handover.
const FIRST_TRANSACTION: Duration = Duration::from_secs(1);

/// Time for the last words to clients whose transactions have outlasted the grace.
const LAST_WORDS: Duration = Duration::from_secs(1);

pub const SETTLE_WITHIN: Duration = Duration::from_secs(5);

const LOOK_PAUSE: Duration = Duration::from_millis(100);

pub struct ServerOptions {
    pub workers: NonZeroUsize,
    pub max_connections: NonZeroUsize,
    pub limits: ClientLimits,
    pub batching: Batching,
    pub servers: ClusterServers,
    pub certificates: Arc<Certificates>,
    pub logins: Logins,
    pub pool: Pool,
    pub rejections: RejectionLog,
    pub takeover: Takeover,
    pub fence: watch::Receiver<Arc<Fence>>,
    pub leaderships: Leaderships,
}

/// A running server. Serves no client before [`Server::accept`].
pub struct Server {
    shared: WorkerContext,
    leaderships: Leaderships,
    workers: Arc<Vec<WorkerHandle>>,
}

impl Server {
    /// Starts the worker threads. The calling runtime must have timers.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub fn start(options: ServerOptions) -> io::Result<Self> {
        let timers = Timers::of_this_runtime();
        let (places, limits) = (options.max_connections.get(), options.limits);
        let shared = WorkerContext {
            pending_logins: PendingLogins::new(places, limits.login_timeout, timers.clone()),
            pooling: Pooling::new(options.pool, options.workers),
            classification: Classification::new(timers.clone()),
            metrics: Metrics::new(Arc::clone(options.takeover.marks())),
            connected: ClientTable::default(),
            takeover: options.takeover,
            fence: options.fence,
            rejections: options.rejections,
            servers: options.servers,
            certificates: options.certificates,
            logins: options.logins,
            limits,
            pause: Pause::default(),
            timers,
            ending: Ending::default(),
        };
        let batching = allowed_batching(options.batching);
        let start = |number| WorkerHandle::start(number, &shared, batching);
        let workers: io::Result<Vec<_>> = (0..options.workers.get()).map(start).collect();
        Ok(Self {
            workers: Arc::new(workers?),
            shared,
            leaderships: options.leaderships,
        })
    }

    #[must_use]
    pub const fn shared(&self) -> &WorkerContext {
        &self.shared
    }

    /// Accepts clients, and campaigns for the tokens of listeners.
    #[must_use]
    pub fn accept(&self, listeners: Vec<(Listener, Option<Arc<Grant>>)>) -> Accepting {
        let shared = &self.shared;
        self.leaderships.campaign(&shared.takeover, &shared.fence);
        Accepting::open(listeners, &self.workers, &self.shared)
    }

    /// Leaves the lead to the next process, and waits until clients of handed-over listeners have logged in and had
    /// time for a transaction.
    pub async fn settle(&self, shutdown: &CancellationToken) {
        self.leaderships.step_down().await;
        let begun = Instant::now();
        let mut last_login = begun;
        while begun.elapsed() < SETTLE_WITHIN
            && last_login.elapsed() < FIRST_TRANSACTION
            && !shutdown.is_cancelled()
        {
            tokio::time::sleep(FIRST_TRANSACTION / 20).await;
            if self.shared.pending_logins.logging_in() > 0 {
                last_login = Instant::now();
            }
        }
    }

    /// Waits until all clients have left, and leads no longer than those of a term stay.
    pub async fn all_left(&self, shutdown: &CancellationToken) {
        self.leaderships.close();
        while self.connections() > 0 && !shutdown.is_cancelled() {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    /// Ends the server once open transactions have ended, at the latest after `grace`. Call after accepting has
    /// stopped.
    pub async fn stop(self, grace: Duration) {
        self.leaderships.step_down().await;
        let ending = self.shared.ending.clone();
        ending.drain.cancel();
        tracing::info!(connections = self.connections(), within = ?grace, "waiting for open transactions");
        // The last reference to the workers, as the listeners have ended.
        let Ok(workers) = Arc::try_unwrap(self.workers) else {
            return;
        };
        let all_ended = async {
            for worker in workers {
                worker.ended().await;
            }
        };
        tokio::pin!(all_ended);
        if tokio::time::timeout(grace, &mut all_ended).await.is_ok() {
            return;
        }
        tracing::warn!("some transactions did not end in time: ending their sessions");
        // First told why: a client whose COMMIT is in flight must not take a closed socket for a rollback.
        self.shared.connected.end_all(Cause::ShuttingDown);
        if tokio::time::timeout(LAST_WORDS, &mut all_ended)
            .await
            .is_err()
        {
            ending.abort.cancel();
            all_ended.await;
        }
    }

    fn connections(&self) -> usize {
        self.workers.iter().map(WorkerHandle::connections).sum()
    }
}
