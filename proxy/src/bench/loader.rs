//! A thread that makes load: its own runtime, its own sessions on both paths. It takes one order at a time.

use std::io;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, LocalSet};

use super::BenchError;
use super::load::{Protocol, Workload};
use super::session::Session;
use super::target::{Path, Target};
use super::turn::{self, Tally, Turn};

/// What a loader can be told. It answers each; an answer that nobody waits for is dropped.
enum Order {
    Open {
        target: Box<Target>,
        sessions: usize,
        workload: Workload,
        protocol: Protocol,
        answer: oneshot::Sender<Result<(), BenchError>>,
    },
    Turn {
        turn: Turn,
        answer: oneshot::Sender<Result<Tally, BenchError>>,
    },
}

/// The handle of the thread. When it is dropped the sessions end, and the drop waits for that.
pub(super) struct Loader {
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts the thread, without sessions.
    pub(super) fn start() -> Result<Self, BenchError> {
        let system = |error| BenchError::system("cannot start a thread for the load", error);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system)?;
        let (orders, taken) = mpsc::channel(1);
        let thread = std::thread::Builder::new()
            .name("load".to_owned())
            .spawn(move || {
                let local = LocalSet::new();
                local.block_on(&runtime, serve(taken));
                drop(local);
                runtime.shutdown_background();
            })
            .map_err(system)?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    /// Opens sessions on a path, and does once in each what the workload needs.
    pub(super) async fn open(
        &self,
        target: &Target,
        sessions: usize,
        workload: Workload,
        protocol: Protocol,
    ) -> Result<(), BenchError> {
        let (answer, answered) = oneshot::channel();
        self.give(Order::Open {
            target: Box::new(target.clone()),
            sessions,
            workload,
            protocol,
            answer,
        });
        taken(answered).await
    }

    /// Gives the order for this loader's part of a turn, and returns at once: what is awaited is the answer. Where that
    /// is dropped, the turn is given up.
    pub(super) fn turn(
        &self,
        turn: Turn,
    ) -> impl Future<Output = Result<Tally, BenchError>> + use<> {
        let (answer, answered) = oneshot::channel();
        self.give(Order::Turn { turn, answer });
        taken(answered)
    }

    /// There is room for one order, and the one before it has been answered.
    fn give(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // Where the thread has ended, so has the answer.
            let _ended = orders.try_send(order);
        }
    }
}

async fn taken<T>(answered: oneshot::Receiver<Result<T, BenchError>>) -> Result<T, BenchError> {
    let ended = |_| {
        BenchError::system(
            "a thread of the load ended",
            io::Error::other("it panicked"),
        )
    };
    answered.await.map_err(ended)?
}

impl Drop for Loader {
    fn drop(&mut self) {
        // The end of the orders is what ends the thread, once its sessions have said goodbye.
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            let _panic_was_told_to_who_gave_the_order = thread.join();
        }
    }
}

async fn serve(mut orders: mpsc::Receiver<Order>) {
    let mut direct = Vec::new();
    let mut proxied = Vec::new();
    while let Some(order) = orders.recv().await {
        match order {
            Order::Open {
                target,
                sessions,
                workload,
                protocol,
                mut answer,
            } => {
                let place = match target.path {
                    Path::Direct => &mut direct,
                    Path::Proxied => &mut proxied,
                };
                let opened = tokio::select! {
                    opened = open(place, &target, sessions, workload, protocol) => opened,
                    () = answer.closed() => Err(BenchError::Interrupted),
                };
                let _interrupted = answer.send(opened);
            }
            Order::Turn { turn, mut answer } => {
                let sessions: &[Rc<Session>] = match turn.path {
                    Path::Direct => &direct,
                    Path::Proxied => &proxied,
                };
                let done = measure(turn, sessions, answer.closed()).await;
                let _interrupted = answer.send(done);
            }
        }
    }
    // At once: each waits for what it has in flight.
    let mut closing = JoinSet::new();
    for session in direct.into_iter().chain(proxied) {
        if let Ok(session) = Rc::try_unwrap(session) {
            closing.spawn_local(session.close());
        }
    }
    closing.join_all().await;
}

async fn open(
    place: &mut Vec<Rc<Session>>,
    target: &Target,
    sessions: usize,
    workload: Workload,
    protocol: Protocol,
) -> Result<(), BenchError> {
    for _ in 0..sessions {
        place.push(Rc::new(Session::open(target, workload, protocol).await?));
    }
    Ok(())
}

async fn measure(
    turn: Turn,
    sessions: &[Rc<Session>],
    stopped: impl Future<Output = ()>,
) -> Result<Tally, BenchError> {
    let (before, began) = (cpu_seconds(), Instant::now());
    let mut tally = turn::run(turn, sessions, stopped).await?;
    tally.busiest = (cpu_seconds() - before) / began.elapsed().as_secs_f64();
    Ok(tally)
}

/// CPU time that this thread has used.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
