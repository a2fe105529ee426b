//! Worker threads: each runs the connections it was given on one single-threaded runtime, so that a
//! connection never crosses threads and shares nothing with other workers that it would have to lock.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pgpalisade_policies::{VerdictCache, Who};
use tokio::runtime::{LocalOptions, LocalRuntime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::arrivals::Arrivals;
use crate::classification::Classification;
use crate::collected::Budget;
use crate::config::UpstreamAddr;
use crate::fence::{Fence, SessionFence};
use crate::login;
use crate::rejection_log::{RejectionLog, SessionLabel};
use crate::takeover::Takeover;
use crate::timers::Timers;
use crate::transport::{Batching, Scratch, SendBatch, StallLimit};

/// Verdicts of one worker may take this many bytes.
const VERDICT_CACHE_BYTES: usize = 16 * 1024 * 1024;

/// What has arrived of texts that are not whole may take this many bytes in one worker.
const COLLECTED_BYTES: usize = 32 * 1024 * 1024;

/// Time from the first look at such a text to its last byte.
const COLLECTED_WITHIN: Duration = Duration::from_secs(30);

/// PostgreSQL's grammar recurses; `pgpalisade_policies::PARSER_STACK` must always be left.
const STACK_BYTES: usize = 2 * pgpalisade_policies::PARSER_STACK;

/// Connections handed to a worker that it has not begun to serve.
const QUEUE: usize = 1024;

/// What all workers have in common.
#[derive(Clone)]
pub struct Shared {
    /// Declarations and releases.
    pub takeover: Takeover,
    /// The decision, and every new one that a reload makes.
    pub fence: watch::Receiver<Arc<Fence>>,
    /// Verdicts on texts that take long.
    pub classification: Classification,
    /// The record of rejections.
    pub rejections: RejectionLog,
    /// The protected server.
    pub upstream: UpstreamAddr,
    /// Connections that have not logged in, and the places for those that do.
    pub arrivals: Arrivals,
    /// Time from connecting to the end of the login.
    pub login_timeout: Duration,
    /// A client that takes no byte for this long is given up.
    pub write_stall_timeout: Option<Duration>,
    /// Idle time before TCP keep-alive probes.
    pub tcp_keepalive: Option<Duration>,
    /// How many sends go to the system in one call.
    pub batching: Batching,
    /// What measures these times.
    pub timers: Timers,
    /// Ends new logins and idle sessions.
    pub drain: CancellationToken,
    /// Ends everything at once.
    pub abort: CancellationToken,
}

/// What the connections of one worker share. Nothing in it is shared with another thread but by
/// handles that need no lock on the way of a message.
pub struct Worker {
    /// Declarations and releases.
    pub takeover: Takeover,
    /// The decision, and every new one that a reload makes.
    fences: RefCell<watch::Receiver<Arc<Fence>>>,
    /// The newest of them that was seen.
    fence: RefCell<Arc<Fence>>,
    /// Verdicts on texts, by text and form.
    pub verdicts: RefCell<VerdictCache>,
    /// Verdicts on texts that take long.
    pub classification: Classification,
    /// The buffer that all connections read into.
    pub scratch: RefCell<Scratch>,
    /// What the connections have to send.
    pub sends: Rc<SendBatch>,
    /// The record of rejections.
    pub rejections: RejectionLog,
    /// The protected server.
    pub upstream: UpstreamAddr,
    /// Connections that have not logged in, of all workers.
    pub arrivals: Arrivals,
    /// Room for texts that have not arrived whole.
    pub collected: Budget,
    /// Time from connecting to the end of the login.
    pub login_timeout: Duration,
    /// A client that takes no byte for this long is given up.
    pub write_stall_limit: StallLimit,
    /// Idle time before TCP keep-alive probes.
    pub tcp_keepalive: Option<Duration>,
    /// How long the server may take to close after a goodbye.
    pub close_timeout: Duration,
    /// What measures these times.
    pub timers: Timers,
    /// Cancelled when `stopping` is set, to wake idle connections.
    pub drain: CancellationToken,
    /// Sessions end as soon as they are idle.
    pub stopping: Cell<bool>,
}

impl Worker {
    fn new(shared: &Shared) -> Self {
        Self {
            takeover: shared.takeover.clone(),
            fence: RefCell::new(Arc::clone(&shared.fence.borrow())),
            fences: RefCell::new(shared.fence.clone()),
            verdicts: RefCell::new(VerdictCache::new(VERDICT_CACHE_BYTES)),
            classification: shared.classification.clone(),
            scratch: RefCell::new(Scratch::default()),
            sends: Rc::new(SendBatch::new(shared.batching)),
            rejections: shared.rejections.clone(),
            upstream: shared.upstream.clone(),
            arrivals: shared.arrivals.clone(),
            collected: Budget::new(COLLECTED_BYTES, COLLECTED_WITHIN),
            login_timeout: shared.login_timeout,
            write_stall_limit: StallLimit {
                time: shared.write_stall_timeout,
                timers: shared.timers.clone(),
            },
            tcp_keepalive: shared.tcp_keepalive,
            close_timeout: Duration::from_secs(5),
            timers: shared.timers.clone(),
            drain: CancellationToken::new(),
            stopping: Cell::new(false),
        }
    }

    /// Whether a fence is the one of the policy that was loaded last.
    #[inline]
    pub(crate) fn is_in_force(&self, fence: &Arc<Fence>) -> bool {
        self.follow_policy();
        Arc::ptr_eq(&self.fence.borrow(), fence)
    }

    /// Takes the policy that was loaded last. Asked for it whenever a client has sent something: once a reload has said
    /// that a policy is in force, nothing that is sent is judged by the one before.
    #[inline]
    fn follow_policy(&self) {
        let mut fences = self.fences.borrow_mut();
        if fences.has_changed().unwrap_or(false) {
            *self.fence.borrow_mut() = Arc::clone(&fences.borrow_and_update());
        }
    }

    /// What holds for a session.
    pub(crate) fn fence_for(&self, label: &SessionLabel) -> SessionFence {
        let who = Who {
            user: &label.user,
            database: &label.database,
            application_name: label.application_name.as_deref(),
            client: Some(label.client_addr.ip()),
        };
        self.follow_policy();
        self.fence.borrow().for_session(&who)
    }
}

/// A connection that was accepted.
pub struct Accepted {
    /// The client's socket.
    pub stream: TcpStream,
    /// Its other end.
    pub client_addr: SocketAddr,
}

/// A connection that is being served.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A running worker, as the listener sees it.
#[derive(Debug)]
pub struct WorkerHandle {
    jobs: mpsc::Sender<Accepted>,
    connections: Arc<AtomicUsize>,
    ended: oneshot::Receiver<()>,
    thread: JoinHandle<()>,
}

impl WorkerHandle {
    /// Starts a worker thread.
    ///
    /// # Errors
    ///
    /// Where the system gives no thread or no event queue.
    pub fn start(number: usize, shared: &Shared) -> io::Result<Self> {
        let (jobs, receiver) = mpsc::channel(QUEUE);
        let (ending, ended) = oneshot::channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let (shared, counter) = (shared.clone(), Arc::clone(&connections));
        let (building, built) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // A runtime whose tasks never leave the thread is made there.
                let runtime = match local_runtime() {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(building.send(Err(error))),
                };
                let _ = building.send(Ok(()));
                // As a task of its own: what is blocked on is polled whenever any task is to run.
                let serving = runtime.spawn_local(run(shared, receiver, counter));
                if let Err(error) = runtime.block_on(serving) {
                    tracing::error!(%error, "a worker thread has panicked");
                }
                // Whatever still runs was told to end at once.
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

    /// Connections that it serves now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Hands it a connection. Where it cannot keep up, the connection is closed.
    pub fn serve(&self, accepted: Accepted) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.jobs.try_send(accepted) {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "a worker cannot keep up with new connections");
        }
    }

    /// Waits until it has ended. It ends after its last connection, once the drain has begun.
    pub async fn ended(self) {
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

async fn run(shared: Shared, mut jobs: mpsc::Receiver<Accepted>, connections: Arc<AtomicUsize>) {
    let worker = Rc::new(Worker::new(&shared));
    // It ends with the thread.
    let sends = Rc::clone(&worker.sends);
    tokio::task::spawn_local(async move { sends.flush_after_each_turn().await });
    let tracker = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = jobs.recv() => accepted,
            () = shared.drain.cancelled() => None,
        };
        let Some(accepted) = accepted else { break };
        let (worker, sessions) = (Rc::clone(&worker), tracker.clone());
        let counted = Counted(Arc::clone(&connections));
        tracker.spawn_local(async move {
            let served = login::serve_client(worker, accepted.stream, accepted.client_addr);
            if let Some((session, place)) = served.await {
                // As a task of its own, which is as large as a session and not as a login.
                sessions.spawn_local(async move {
                    session.run().await;
                    drop((place, counted));
                });
            }
        });
    }
    worker.stopping.set(true);
    worker.drain.cancel();
    tracker.close();
    tokio::select! {
        () = tracker.wait() => {}
        () = shared.abort.cancelled() => {}
    }
}
