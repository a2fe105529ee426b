//! The server as a whole: its threads, and their orderly end.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::accept::Accepting;
use crate::accounts::Logins;
use crate::arrivals::Arrivals;
use crate::certificates::Certificates;
use crate::classification::Classification;
use crate::client_table::ClientTable;
use crate::fence::Fence;
use crate::listener::Listener;
use crate::metrics::Metrics;
use crate::pause::Pause;
use crate::rejection_log::RejectionLog;
use crate::takeover::Takeover;
use crate::timers::Timers;
use crate::transport::{Batching, allowed_batching};
use crate::worker::{ClientLimits, Ending, HeadersTold, Servers, Shared};
use crate::worker_thread::WorkerHandle;

/// Who has connected just before the listeners were handed over has this long for a first transaction.
const FIRST_TRANSACTION: Duration = Duration::from_secs(1);

/// [`Server::settle`] takes no longer.
pub const SETTLE_WITHIN: Duration = Duration::from_secs(5);

/// How long it waits before it looks again whether clients have left.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// What a server is made of.
pub struct ServerOptions {
    /// Its threads.
    pub workers: NonZeroUsize,
    /// The most connections of clients at one time.
    pub max_connections: NonZeroUsize,
    /// What holds for each of them.
    pub limits: ClientLimits,
    /// How many sends go to the system in one call.
    pub batching: Batching,
    /// The servers of the protected cluster.
    pub servers: Servers,
    /// TLS of both legs.
    pub certificates: Arc<Certificates>,
    /// How clients log in.
    pub logins: Logins,
    /// The record of rejections.
    pub rejections: RejectionLog,
    /// Declarations and releases.
    pub takeover: Takeover,
    /// The decision, and every new one that a reload makes.
    pub fence: watch::Receiver<Arc<Fence>>,
}

/// A running server. It serves nobody before [`Server::accept`].
pub struct Server {
    shared: Shared,
    workers: Arc<Vec<WorkerHandle>>,
}

impl Server {
    /// Starts its threads. On a runtime with timers, which are the threads' too.
    ///
    /// # Errors
    ///
    /// Where the system gives no thread.
    pub fn start(options: ServerOptions) -> io::Result<Self> {
        let timers = Timers::of_this_runtime();
        let (places, limits) = (options.max_connections.get(), options.limits);
        let shared = Shared {
            arrivals: Arrivals::new(places, limits.login_timeout, timers.clone()),
            headers_told: HeadersTold::default(),
            classification: Classification::new(timers.clone()),
            metrics: Metrics::new(Arc::clone(options.takeover.cells())),
            connected: ClientTable::default(),
            takeover: options.takeover,
            fence: options.fence,
            rejections: options.rejections,
            servers: options.servers,
            certificates: options.certificates,
            logins: options.logins,
            limits,
            pause: Pause::default(),
            batching: allowed_batching(options.batching),
            timers,
            ending: Ending::default(),
        };
        let start = |number| WorkerHandle::start(number, &shared);
        let workers: io::Result<Vec<_>> = (0..options.workers.get()).map(start).collect();
        Ok(Self {
            workers: Arc::new(workers?),
            shared,
        })
    }

    /// What its connections share, to be looked at.
    #[must_use]
    pub const fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Begins to accept.
    #[must_use]
    pub fn accept(&self, listeners: Vec<Listener>) -> Accepting {
        Accepting::open(listeners, &self.workers, &self.shared)
    }

    /// Waits until those who came through listeners that are handed over have logged in, and had time to begin.
    pub async fn settle(&self, shutdown: &CancellationToken) {
        let begun = Instant::now();
        let mut last_login = begun;
        while begun.elapsed() < SETTLE_WITHIN
            && last_login.elapsed() < FIRST_TRANSACTION
            && !shutdown.is_cancelled()
        {
            tokio::time::sleep(FIRST_TRANSACTION / 20).await;
            if self.shared.arrivals.logging_in() > 0 {
                last_login = Instant::now();
            }
        }
    }

    /// Waits until all clients have left by themselves, or the server is to end without them.
    pub async fn all_left(&self, shutdown: &CancellationToken) {
        while self.connections() > 0 && !shutdown.is_cancelled() {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    /// Ends once open transactions have, or their time is over. To be called when nothing is accepted any more.
    pub async fn stop(self, grace: Duration) {
        let ending = self.shared.ending.clone();
        ending.drain.cancel();
        tracing::info!(connections = self.connections(), within = ?grace, "waiting for open transactions");
        // The listeners have ended, so nobody else holds the workers.
        let Ok(workers) = Arc::try_unwrap(self.workers) else {
            return;
        };
        let all_ended = async {
            for worker in workers {
                worker.ended().await;
            }
        };
        tokio::pin!(all_ended);
        if tokio::time::timeout(grace, &mut all_ended).await.is_err() {
            tracing::warn!("some transactions did not end in time: ending their sessions");
            ending.abort.cancel();
            all_ended.await;
        }
    }

    fn connections(&self) -> usize {
        self.workers.iter().map(WorkerHandle::connections).sum()
    }
}
