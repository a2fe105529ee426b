//! Accepting connections: each goes to the worker that has the fewest.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::leadership::Grant;
use crate::listener::{Accepted, ListenAddr, Listener};
use crate::turned_away::TurnedAway;
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
        let (certificates, metrics) = (Arc::clone(&shared.certificates), shared.metrics.clone());
        let turned_away = Arc::new(TurnedAway::new(certificates, metrics));
        let mut accepting = Self {
            listeners: Vec::new(),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        };
        for (listener, grant) in listeners {
            let (workers, turned_away) = (Arc::clone(workers), Arc::clone(&turned_away));
            let (listener, closing) = (Arc::new(listener), accepting.closing.clone());
            accepting.listeners.push(Arc::clone(&listener));
            let accept = accept((listener, grant), workers, turned_away, closing);
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
    turned_away: Arc<TurnedAway>,
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
                wait = hand_over(accepted, wait, &workers, &turned_away).await;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Gives the connection to a worker, and returns how long to wait for the next one. After a wait that timed out,
/// later connections do not wait until one finds room.
async fn hand_over(
    accepted: Accepted,
    wait: Duration,
    workers: &[WorkerHandle],
    turned_away: &TurnedAway,
) -> Duration {
    let Some(worker) = workers.iter().min_by_key(|worker| worker.connections()) else {
        tracing::error!("there is no worker");
        return wait;
    };
    let Err(accepted) = worker.serve(accepted, wait).await else {
        return ROOM_WAIT;
    };
    if !wait.is_zero() {
        tracing::warn!("the workers cannot keep up with new connections, which are turned away");
    }
    turned_away.turn_away(accepted);
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use pgpalisade_tls::SslSettings;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::mpsc;

    use super::*;
    use crate::certificates::{Certificates, ClientTls};
    use crate::metrics::Metrics;

    const STARTUP: &[u8] = b"\0\0\0\x10\0\x03\0\0user\0x\0\0";

    async fn stuck() -> (SocketAddr, Arc<Vec<WorkerHandle>>, mpsc::Receiver<Accepted>) {
        let certificates =
            Certificates::load(ClientTls::Off, None, SslSettings::default()).unwrap();
        let turned_away = Arc::new(TurnedAway::new(
            Arc::new(certificates),
            Metrics::new(Arc::default()),
        ));
        let (worker, queue) = WorkerHandle::stuck();
        let any = ListenAddr::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = Listener::bind(&any).unwrap();
        let ListenAddr::Tcp(address) = listener.address().unwrap() else {
            unreachable!();
        };
        let (workers, closing) = (Arc::new(vec![worker]), CancellationToken::new());
        let listener = Arc::new(listener);
        let listener = (listener, None);
        tokio::spawn(accept(listener, Arc::clone(&workers), turned_away, closing));
        (address, workers, queue)
    }

    /// A worker without room closes no connection silently.
    #[tokio::test]
    async fn who_finds_no_room_at_a_worker_is_told() {
        let (address, workers, mut queue) = stuck().await;
        let _served = TcpStream::connect(address).await.unwrap();
        let mut turned_away = TcpStream::connect(address).await.unwrap();
        turned_away.write_all(STARTUP).await.unwrap();
        let mut answer = Vec::new();
        turned_away.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            answer.starts_with('E') && answer.contains("C53300\0"),
            "{answer:?}"
        );
        assert_eq!(workers[0].connections(), 1);
        assert!(queue.try_recv().is_ok());
    }

    /// A burst waits: a leader at its end is served once there is room.
    #[tokio::test]
    async fn who_comes_in_a_burst_is_served() {
        let (address, workers, mut queue) = stuck().await;
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
