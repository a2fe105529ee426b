//! Accepting connections: each goes to the worker that has the fewest.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::leadership::Grant;
use crate::listener::{Accepted, ListenAddr, Listener};
use crate::metrics::Metrics;
use crate::worker::WorkerContext;
use crate::worker_thread::WorkerHandle;

/// Pause after a failed accept: usually no file descriptor is left, and an immediate retry would only burn the
/// processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time that a listener waits for room at the workers, while the system queues new connections.
const ROOM_WAIT: Duration = Duration::from_secs(1);

pub struct Accepting {
    pub listeners: Vec<Arc<Listener>>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl Accepting {
    pub(crate) fn open(
        listeners: Vec<(Listener, Option<Arc<Grant>>)>,
        workers: &Arc<Vec<WorkerHandle>>,
        shared: &WorkerContext,
    ) -> Self {
        let mut accepting = Self {
            listeners: Vec::new(),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        };
        for (listener, grant) in listeners {
            let (workers, metrics) = (Arc::clone(workers), shared.metrics.clone());
            let (listener, closing) = (Arc::new(listener), accepting.closing.clone());
            accepting.listeners.push(Arc::clone(&listener));
            let accept = accept((listener, grant), workers, metrics, closing);
            accepting.tasks.spawn(accept);
        }
        accepting
    }

    /// Addresses in use, with the ports that the system has chosen.
    pub fn addresses(&self) -> Vec<ListenAddr> {
        let addresses = self.listeners.iter().map(|listener| listener.address());
        addresses.filter_map(Result::ok).collect()
    }

    /// Stops accepting. When this returns, every accepted connection has a worker.
    pub async fn close(self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

async fn accept(
    (listener, grant): (Arc<Listener>, Option<Arc<Grant>>),
    workers: Arc<Vec<WorkerHandle>>,
    metrics: Metrics,
    closing: CancellationToken,
) {
    let mut wait = ROOM_WAIT;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closing.cancelled() => return,
        };
        match accepted {
            Ok(mut accepted) => {
                accepted.grant.clone_from(&grant);
                wait = hand_over(accepted, wait, &workers, &metrics).await;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Gives the connection to a worker, and returns how long to wait for the next one. One that finds no room in time is
/// closed, and later ones then do not wait until one finds room.
async fn hand_over(
    accepted: Accepted,
    wait: Duration,
    workers: &[WorkerHandle],
    metrics: &Metrics,
) -> Duration {
    let Some(worker) = workers.iter().min_by_key(|worker| worker.connections()) else {
        tracing::error!("there is no worker");
        return wait;
    };
    if worker.serve(accepted, wait).await {
        return ROOM_WAIT;
    }
    if !wait.is_zero() {
        tracing::warn!("the workers cannot keep up with new connections, which are closed");
    }
    metrics.refused_login("53300");
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    /// A burst waits: a leader at its end is served once there is room.
    #[tokio::test]
    async fn who_comes_in_a_burst_is_served() {
        let (worker, mut queue) = WorkerHandle::stuck();
        let any = ListenAddr::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = Arc::new(Listener::bind(&any).unwrap());
        let ListenAddr::Tcp(address) = listener.address().unwrap() else {
            unreachable!();
        };
        let (workers, closing) = (Arc::new(vec![worker]), CancellationToken::new());
        let metrics = Metrics::new(Arc::default());
        tokio::spawn(accept(
            (listener, None),
            Arc::clone(&workers),
            metrics,
            closing,
        ));
        let mut burst = Vec::new();
        for _ in 0..8 {
            burst.push(TcpStream::connect(address).await.unwrap());
        }
        for _ in &burst {
            tokio::time::sleep(ROOM_WAIT / 10).await;
            assert!(queue.try_recv().is_ok());
        }
        assert_eq!(workers[0].connections(), burst.len());
    }
}
