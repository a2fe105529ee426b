//! Worker threads. Each runs its connections on one single-threaded runtime, so a connection never crosses threads.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{LocalOptions, LocalRuntime};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use crate::listener::Accepted;
use crate::login;
use crate::transport::Batching;
use crate::worker::{Worker, WorkerContext};

/// PostgreSQL's grammar recurses: `pgpalisade_policies::PARSER_STACK` must always be free.
const STACK_BYTES: usize = 2 * pgpalisade_policies::PARSER_STACK;

/// Connections that a worker has not begun to serve.
const QUEUE: usize = 1024;

/// Interval at which a worker publishes the statistics of its verdict cache.
const COUNTED_EVERY: Duration = Duration::from_secs(1);

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct WorkerHandle {
    jobs: mpsc::Sender<Accepted>,
    connections: Arc<AtomicUsize>,
    ended: oneshot::Receiver<()>,
    thread: JoinHandle<()>,
}

impl WorkerHandle {
    pub(crate) fn start(
        number: usize,
        shared: &WorkerContext,
        batching: Batching,
    ) -> io::Result<Self> {
        let (jobs, receiver) = mpsc::channel(QUEUE);
        let (ending, ended) = oneshot::channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let (shared, counter) = (shared.clone(), Arc::clone(&connections));
        let (building, built) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // A runtime whose tasks never leave the thread must be created on it.
                let runtime = match local_runtime() {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(building.send(Err(error))),
                };
                let _ = building.send(Ok(()));
                // A separate task: `block_on` polls its own future whenever any task is to run.
                let serving =
                    runtime.spawn_local(run(Worker::new(shared, batching), receiver, counter));
                if let Err(error) = runtime.block_on(serving) {
                    tracing::error!(%error, "a worker thread has panicked");
                }
                // Remaining tasks were told to end at once.
                runtime.shutdown_background();
                let _ = ending.send(());
            })?;
        built.recv().map_err(io::Error::other)??;
        Ok(Self {
            jobs,
            connections,
            ended,
            thread,
        })
    }

    #[must_use]
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Queues a connection. Closes it if there is no room within `wait`, and returns whether there was.
    pub(crate) async fn serve(&self, accepted: Accepted, wait: Duration) -> bool {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let is_queued = self.jobs.send_timeout(accepted, wait).await.is_ok();
        if !is_queued {
            self.connections.fetch_sub(1, Ordering::Relaxed);
        }
        is_queued
    }

    #[cfg(test)]
    pub(crate) fn stuck() -> (Self, mpsc::Receiver<Accepted>) {
        let (jobs, receiver) = mpsc::channel(1);
        let worker = Self {
            jobs,
            connections: Arc::default(),
            ended: oneshot::channel().1,
            thread: std::thread::spawn(|| {}),
        };
        (worker, receiver)
    }

    /// Waits for the worker's end: after its last connection, once the drain has begun.
    pub(crate) async fn ended(self) {
        let _ = self.ended.await;
        if self.thread.join().is_err() {
            tracing::error!("a worker thread has panicked");
        }
    }
}

/// Without timers: see [`crate::timers`].
fn local_runtime() -> io::Result<LocalRuntime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build_local(LocalOptions::default())
}

async fn run(worker: Worker, mut jobs: mpsc::Receiver<Accepted>, connections: Arc<AtomicUsize>) {
    let worker = Rc::new(worker);
    // The task below ends with the thread.
    let sends = Rc::clone(&worker.sends);
    tokio::task::spawn_local(async move { sends.flush_after_each_turn().await });
    let (gated, orders) = (Rc::clone(&worker), worker.shared.pause.orders());
    tokio::task::spawn_local(async move { gated.gate.obey(orders).await });
    tokio::task::spawn_local(Rc::clone(&worker).keeps_backends());
    let (asked, pools) = (Rc::clone(&worker), &worker.shared.pooling.pools);
    if worker.backends.is_some() {
        let questions = pools.questions();
        tokio::task::spawn_local(async move { asked.answers_operators(questions).await });
    }
    let counted = Rc::clone(&worker);
    tokio::task::spawn_local(async move {
        loop {
            counted.shared.timers.sleep(COUNTED_EVERY).await;
            counted.tally.cached(&counted.verdicts.borrow().stats());
        }
    });
    let tracker = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = jobs.recv() => accepted,
            () = worker.shared.ending.drain.cancelled() => None,
        };
        let Some(accepted) = accepted else { break };
        let (worker, sessions) = (Rc::clone(&worker), tracker.clone());
        let counted = (
            Counted(Arc::clone(&connections)),
            worker.shared.metrics.connected(),
            worker
                .shared
                .connected
                .enter(accepted.client_addr, accepted.grant.clone()),
        );
        // Boxed because tasks are aligned: glibc would not reuse the room of one as large as a login for the next.
        tracker.spawn_local(Box::pin(async move {
            let served = login::serve_client(worker, accepted, counted.2.entry());
            if let Some((session, place)) = served.await {
                // A separate task has the size of a session, not of a login.
                sessions.spawn_local(async move {
                    session.run().await;
                    drop((place, counted));
                });
            }
        }));
    }
    worker.stopping.set(true);
    worker.drain.cancel();
    tracker.close();
    tokio::select! {
        () = tracker.wait() => {}
        () = worker.shared.ending.abort.cancelled() => {}
    }
}
