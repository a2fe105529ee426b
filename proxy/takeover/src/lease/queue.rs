//! The queue of candidates for a lease, and how the lease is requested and given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use pgpalisade_authority::{Authority, LeaseId, LeaseStep, Leased, Scope};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::error::DeclareError;
use super::super::in_time;
use super::super::meters::Meters;
use super::vacancy::Vacancies;
use super::{LIVES, RETRY};

/// Interval at which the first in the queue checks whether the lease is free.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Number of times that a lease is handed on within one proxy before other proxies get a chance.
const HANDED_ON_MAX: u32 = 4;
/// Time for which a stopping proxy waits for leases to be given back.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(1);

/// The queues of this proxy, one for each scope whose lease is waited for or held. Only the first in a queue asks the
/// authority.
pub(in super::super) struct LeaseQueues {
    authority: Arc<dyn Authority>,
    queues: DashMap<Scope, Arc<LeaseQueue>>,
    timeout: Duration,
    /// Runtime of the proxy's own tasks.
    pub(super) handle: Handle,
    /// Leases that are acquired, kept or given back. An aborted task keeps its candidacy until the runtime drops it,
    /// and only then is the lease given back.
    pub(super) tasks: TaskTracker,
    /// Measures how long leases have no holder.
    pub(super) vacancies: Vacancies,
}

#[derive(Default)]
struct LeaseQueue {
    /// The front place. It is handed on in the order of requests.
    front: tokio::sync::Mutex<()>,
    /// Signals that a session of this proxy has given the lease back.
    freed: Notify,
    /// Number of times that it was handed on in this proxy since another proxy held it.
    handed_on: AtomicU32,
}

/// A place in the queue of a scope.
#[derive(Clone)]
pub(super) struct QueueTicket {
    pub(super) queues: Arc<LeaseQueues>,
    queue: Arc<LeaseQueue>,
    pub(super) scope: Scope,
    id: LeaseId,
    /// Extra lifetime of the lease in the store.
    delay: Duration,
    /// Whether the store may have given the lease to it.
    may_hold: Arc<AtomicBool>,
}

/// The turn of a ticket.
pub(super) struct Turn {
    /// Time of the request: the lease surely lives from then on.
    pub(super) asked_at: Instant,
    /// The last time when another held the lease, if this one has waited.
    pub(super) others_at: Option<Instant>,
}

impl LeaseQueues {
    pub(in super::super) fn new(
        authority: &Arc<dyn Authority>,
        timeout: Duration,
        meters: &Meters,
    ) -> Arc<Self> {
        Arc::new(Self {
            authority: Arc::clone(authority),
            queues: DashMap::new(),
            timeout,
            handle: Handle::current(),
            tasks: TaskTracker::new(),
            vacancies: Vacancies {
                meters: meters.clone(),
                ended: Mutex::default(),
            },
        })
    }

    /// A new ticket at the end of a scope's queue, with this lock delay.
    pub(super) fn stand(self: &Arc<Self>, scope: &Scope, delay: Duration) -> QueueTicket {
        QueueTicket {
            queues: Arc::clone(self),
            queue: Arc::clone(&self.queues.entry(scope.clone()).or_default()),
            scope: scope.clone(),
            id: LeaseId::random(),
            delay,
            may_hold: Arc::default(),
        }
    }

    /// Waits until all dropped leases are given back, if the store answers.
    pub(in super::super) async fn close(&self) {
        self.tasks.close();
        let _late = tokio::time::timeout(GIVEN_BACK_WITHIN, self.tasks.wait()).await;
    }
}

impl QueueTicket {
    /// Waits for the lease until `until` or its session is gone, and asks for it at least once.
    pub(super) async fn acquire(
        &self,
        until: Instant,
        gone: &CancellationToken,
    ) -> Result<Turn, DeclareError> {
        let held = |unanswered| DeclareError::LeaseHeld { unanswered };
        let within = until.max(Instant::now() + LOOK_EVERY);
        let front = gone.run_until_cancelled(timeout_at(within, self.queue.front.lock()));
        let _front = front.await.and_then(Result::ok).ok_or_else(|| held(None))?;
        // The holder is unknown until the authority has answered once.
        let mut unanswered = Some("no answer in time".to_owned());
        let (mut others_at, mut is_unclear) = (None, false);
        let acquiring = async {
            loop {
                let asked_at = Instant::now();
                self.may_hold.store(true, Ordering::Relaxed);
                match self.step(LeaseStep::Acquire(LIVES + self.delay)).await {
                    Ok(Leased::Held) => {
                        return Some(Turn {
                            asked_at,
                            others_at,
                        });
                    }
                    Ok(Leased::NotHeld) => {
                        // An earlier request without an answer may be carried out yet.
                        self.may_hold.store(is_unclear, Ordering::Relaxed);
                        self.queue.handed_on.store(0, Ordering::Relaxed);
                        unanswered = None;
                        others_at = Some(Instant::now());
                    }
                    Err(error) => {
                        unanswered = Some(error.to_string());
                        is_unclear = true;
                    }
                }
                if Instant::now() >= until {
                    return None;
                }
                tokio::select! {
                    () = gone.cancelled() => return None,
                    () = self.queue.freed.notified() => self.let_others().await,
                    () = sleep(LOOK_EVERY) => {}
                }
            }
        };
        let within = within.max(Instant::now() + self.queues.timeout);
        let acquired = timeout_at(within, acquiring).await.ok().flatten();
        acquired.ok_or_else(|| held(unanswered))
    }

    /// Gives other proxies a chance. They are not told of a lease that was given back here.
    async fn let_others(&self) {
        let handed_on = self.queue.handed_on.fetch_add(1, Ordering::Relaxed);
        if handed_on % HANDED_ON_MAX == HANDED_ON_MAX - 1 {
            sleep(LOOK_EVERY * 3 / 2).await;
        }
    }

    /// Tells the store until it has answered, or the lease has expired.
    pub(super) async fn give_back(&self) {
        let ends = Instant::now() + LIVES;
        while let Err(error) = self.step(LeaseStep::Release).await {
            tracing::debug!(%error, scope = %self.scope, "a lease is not released yet");
            if Instant::now() > ends {
                break;
            }
            sleep(RETRY).await;
        }
        self.queue.freed.notify_one();
    }

    /// Renews the lease if it is held.
    pub(super) async fn renew(&self) -> Result<Leased, DeclareError> {
        self.renew_until(Instant::now() + self.queues.timeout).await
    }

    pub(super) async fn renew_until(&self, deadline: Instant) -> Result<Leased, DeclareError> {
        let step = LeaseStep::Renew(LIVES + self.delay);
        self.step_until(step, deadline).await
    }

    async fn step(&self, step: LeaseStep) -> Result<Leased, DeclareError> {
        let deadline = Instant::now() + self.queues.timeout;
        self.step_until(step, deadline).await
    }

    async fn step_until(&self, step: LeaseStep, deadline: Instant) -> Result<Leased, DeclareError> {
        let step = self.queues.authority.lease(&self.scope, self.id, step);
        in_time(step, deadline).await
    }

    /// Whether the lease of a vanished holder stays reserved for a while.
    pub(super) const fn delays(&self) -> bool {
        !self.delay.is_zero()
    }

    /// Lets a held lease run out.
    pub(super) fn vanish(&self) {
        // This reference and the map's own.
        let unused = |_: &Scope, queue: &Arc<LeaseQueue>| Arc::strong_count(queue) <= 2;
        self.queues.queues.remove_if(&self.scope, unused);
    }

    /// Gives the lease back in a separate task, if it may have been acquired.
    pub(super) fn leave(&self) {
        if !self.may_hold.load(Ordering::Relaxed) {
            return self.vanish();
        }
        let ticket = self.clone();
        let giving_back = async move {
            ticket.give_back().await;
            ticket.vanish();
        };
        let queues = &self.queues;
        queues.tasks.spawn_on(giving_back, &queues.handle);
    }
}
