//! The proxy as a whole: authority, takeovers, workers, listeners, and their orderly end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::Authority;
use pgpalisade_policies::Policy;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::arrivals::Arrivals;
use crate::certificates::Certificates;
use crate::classification::Classification;
use crate::config::{Barrier, Config};
use crate::fence::Fence;
use crate::policy_file::Reloads;
use crate::rejection_log::RejectionLog;
use crate::store::{self, Store, StoreError};
use crate::takeover::{BarrierKind, StartError, StoreLock, Takeover, TakeoverOptions};
use crate::timers::Timers;
use crate::transport::allowed_batching;
use crate::worker::Shared;
use crate::worker_thread::{Accepted, WorkerHandle};

/// How long a listener rests after an accept that failed: most often the process has no file
/// descriptor left, and trying again at once would only burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the proxy cannot serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The authority's store cannot be opened.
    #[error("cannot open the token authority: {0}")]
    Authority(#[from] StoreError),
    /// Takeovers cannot be served.
    #[error(transparent)]
    Takeover(#[from] StartError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The system gives no thread.
    #[error("cannot start a worker thread: {0}")]
    Worker(io::Error),
    /// The policy names a scope by something that is no name.
    #[error("the policy names an invalid scope: {0}")]
    Scope(#[from] pgpalisade_authority::ScopeError),
}

/// What a running proxy is told.
#[derive(Debug, Clone)]
pub(crate) struct Signals {
    /// Cancelled: to end.
    pub shutdown: CancellationToken,
    /// Notified: to read the policy file again.
    pub reload: Arc<Notify>,
}

/// Serves until `signals.shutdown` is cancelled, then lets sessions finish their transactions for the time
/// that the configuration allows. `ready` gets the addresses once connections are accepted.
///
/// # Errors
///
/// [`ServeError`] where it cannot begin to serve.
pub(crate) async fn serve(
    config: Config,
    policy: Policy,
    signals: Signals,
    rejections: RejectionLog,
    certificates: Arc<Certificates>,
    ready: oneshot::Sender<Vec<SocketAddr>>,
) -> Result<(), ServeError> {
    let listeners = listen(&config.listen).await?;
    let Store { authority, lock } = store::open(&config.authority, config.takeover_timeout).await?;
    let takeover = start_takeover(&config, authority, lock).await?;
    let cells = Arc::clone(takeover.cells());
    let fence = Fence::new(policy, Arc::clone(&cells), config.mode)?;
    let (fences, fence) = watch::channel(Arc::new(fence));
    let shutdown = signals.shutdown;
    if let Some(path) = config.policy.clone() {
        let reloads = Reloads {
            path,
            cells,
            overall: config.mode,
            fences,
        };
        tokio::spawn(reloads.run(signals.reload, shutdown.clone()));
    }
    let timers = Timers::of_this_runtime();
    let shared = Shared {
        fence,
        arrivals: Arrivals::new(
            config.max_connections.get(),
            config.login_timeout,
            timers.clone(),
        ),
        classification: Classification::new(timers.clone()),
        takeover,
        rejections,
        upstream: config.upstream.clone(),
        certificates,
        login_timeout: config.login_timeout,
        write_stall_timeout: config.write_stall_timeout,
        tcp_keepalive: config.tcp_keepalive,
        batching: allowed_batching(config.batching),
        timers,
        drain: CancellationToken::new(),
        abort: CancellationToken::new(),
    };
    let workers = (0..config.workers.get()).map(|number| WorkerHandle::start(number, &shared));
    let workers = Arc::new(
        workers
            .collect::<io::Result<Vec<_>>>()
            .map_err(ServeError::Worker)?,
    );
    let accepting = TaskTracker::new();
    let addresses = listeners
        .iter()
        .filter_map(|listener| listener.local_addr().ok())
        .collect();
    for listener in listeners {
        accepting.spawn(accept(listener, Arc::clone(&workers), shutdown.clone()));
    }
    // Nobody has to wait for it.
    let _ = ready.send(addresses);

    shutdown.cancelled().await;
    accepting.close();
    accepting.wait().await;
    stop(workers, &shared, config.shutdown_grace).await;
    Ok(())
}

async fn listen(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, ServeError> {
    let mut listeners = Vec::new();
    for &address in addresses {
        let listener = TcpListener::bind(address).await;
        listeners.push(listener.map_err(|source| ServeError::Listen { address, source })?);
    }
    Ok(listeners)
}

async fn start_takeover(
    config: &Config,
    authority: Arc<dyn Authority>,
    store_lock: StoreLock,
) -> Result<Takeover, StartError> {
    let Barrier::Cluster = config.barrier;
    let declared_by = format!("pgpalisade {}", std::process::id());
    let mut options = TakeoverOptions::new(config.control.expose().clone(), declared_by);
    options.timeout = config.takeover_timeout;
    options.barrier = BarrierKind::Cluster;
    options.store_lock = store_lock;
    options.witness = config.witness;
    Takeover::start(options, authority, CancellationToken::new()).await
}

async fn accept(
    listener: TcpListener,
    workers: Arc<Vec<WorkerHandle>>,
    shutdown: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => return,
        };
        match accepted {
            Ok((stream, client_addr)) => hand_over(stream, client_addr, &workers),
            Err(error) => {
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn hand_over(stream: TcpStream, client_addr: SocketAddr, workers: &[WorkerHandle]) {
    let least_busy = workers.iter().min_by_key(|worker| worker.connections());
    match (stream.into_std(), least_busy) {
        (Ok(stream), Some(worker)) => worker.serve(Accepted {
            stream,
            client_addr,
        }),
        (Err(error), _) => tracing::warn!(%error, "handing a connection to a worker"),
        (Ok(_), None) => tracing::error!("there is no worker"),
    }
}

async fn stop(workers: Arc<Vec<WorkerHandle>>, shared: &Shared, grace: Duration) {
    shared.drain.cancel();
    let open: usize = workers.iter().map(WorkerHandle::connections).sum();
    tracing::info!(connections = open, ?grace, "waiting for open transactions");
    // The listeners have ended, so nobody else holds the workers.
    let Ok(workers) = Arc::try_unwrap(workers) else {
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
        shared.abort.cancel();
        all_ended.await;
    }
}
