//! The line of those who wait for a lease, and how it is asked for and given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use pgpalisade_authority::{Authority, LeaseId, LeaseStep, Leased, Scope};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::TaskTracker;

use super::super::error::DeclareError;
use super::super::in_time;
use super::super::meters::Meters;
use super::vacancy::Vacancies;
use super::{LIVES, RETRY};

/// How often the first in the line looks whether the lease is free.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A lease is handed on within one proxy so often before those of other proxies have a chance.
const HANDED_ON_MAX: u32 = 4;
/// How long a proxy that stops waits for leases to be given back.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(1);

/// The lines of this proxy, one for each scope whose lease is waited for or held. Only the first in a line asks the
/// authority.
pub(in super::super) struct Lines {
    authority: Arc<dyn Authority>,
    lines: DashMap<Scope, Arc<Line>>,
    timeout: Duration,
    handle: Handle,
    /// Leases that are being given back.
    returns: TaskTracker,
    /// How long nobody has held them.
    pub(super) vacancies: Vacancies,
}

#[derive(Default)]
struct Line {
    /// The place at the front. It is handed on in the order in which it was asked for.
    front: tokio::sync::Mutex<()>,
    /// A session of this proxy has given the lease back.
    freed: Notify,
    /// How often it was handed on in this proxy since the lease was another's.
    handed_on: AtomicU32,
}

/// A place in the line of a scope.
#[derive(Clone)]
pub(super) struct Place {
    lines: Arc<Lines>,
    line: Arc<Line>,
    scope: Scope,
    id: LeaseId,
    /// How much longer the lease lives in the store.
    delay: Duration,
}

/// A turn that has come.
pub(super) struct Turn {
    /// When the lease was asked for: it surely lives from then on.
    pub(super) asked_at: Instant,
    /// When it was last another's, where it was waited for.
    pub(super) others_at: Option<Instant>,
}

impl Lines {
    pub(in super::super) fn new(
        authority: &Arc<dyn Authority>,
        timeout: Duration,
        meters: &Meters,
    ) -> Arc<Self> {
        Arc::new(Self {
            authority: Arc::clone(authority),
            lines: DashMap::new(),
            timeout,
            handle: Handle::current(),
            returns: TaskTracker::new(),
            vacancies: Vacancies::new(meters),
        })
    }

    /// A new place at the end of a scope's line, which has this lock delay.
    pub(super) fn stand(self: &Arc<Self>, scope: &Scope, delay: Duration) -> Place {
        Place {
            lines: Arc::clone(self),
            line: Arc::clone(&self.lines.entry(scope.clone()).or_default()),
            scope: scope.clone(),
            id: LeaseId::random(),
            delay,
        }
    }

    /// Where the proxy's own tasks run.
    pub(super) const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits until all that were dropped are given back, where the store answers.
    pub(in super::super) async fn close(&self) {
        self.returns.close();
        let _late = tokio::time::timeout(GIVEN_BACK_WITHIN, self.returns.wait()).await;
    }
}

impl Place {
    /// Of which scope.
    pub(super) const fn scope(&self) -> &Scope {
        &self.scope
    }

    /// What is measured of its lease.
    pub(super) fn vacancies(&self) -> &Vacancies {
        &self.lines.vacancies
    }

    /// Waits for the lease until then, and asks for it once at least.
    pub(super) async fn acquire(&self, until: Instant) -> Result<Turn, DeclareError> {
        let held = |unanswered| DeclareError::LeaseHeld { unanswered };
        let within = until.max(Instant::now() + LOOK_EVERY);
        let front = timeout_at(within, self.line.front.lock()).await;
        let _front = front.map_err(|_| held(None))?;
        // Nobody knows whose it is where the authority has not answered once.
        let mut unanswered = Some("no answer in time".to_owned());
        let mut others_at = None;
        let acquiring = async {
            loop {
                let asked_at = Instant::now();
                match self.step(LeaseStep::Acquire(LIVES + self.delay)).await {
                    Ok(Leased::Held) => {
                        return Some(Turn {
                            asked_at,
                            others_at,
                        });
                    }
                    Ok(Leased::NotHeld) => {
                        self.line.handed_on.store(0, Ordering::Relaxed);
                        unanswered = None;
                        others_at = Some(Instant::now());
                    }
                    Err(error) => unanswered = Some(error.to_string()),
                }
                if Instant::now() >= until {
                    return None;
                }
                tokio::select! {
                    () = self.line.freed.notified() => self.let_others().await,
                    () = sleep(LOOK_EVERY) => {}
                }
            }
        };
        let within = within.max(Instant::now() + self.lines.timeout);
        let acquired = timeout_at(within, acquiring).await.ok().flatten();
        acquired.ok_or_else(|| held(unanswered))
    }

    /// A chance for those who wait at other proxies, which are not told of a lease that was given back here.
    async fn let_others(&self) {
        let handed_on = self.line.handed_on.fetch_add(1, Ordering::Relaxed);
        if handed_on % HANDED_ON_MAX == HANDED_ON_MAX - 1 {
            sleep(LOOK_EVERY * 3 / 2).await;
        }
    }

    /// Tells the store until it has heard, or the lease has ended by itself.
    pub(super) async fn give_back(&self) {
        let ends = Instant::now() + LIVES;
        while let Err(error) = self.step(LeaseStep::Release).await {
            tracing::debug!(%error, scope = %self.scope, "a lease is not released yet");
            if Instant::now() > ends {
                break;
            }
            sleep(RETRY).await;
        }
        self.line.freed.notify_one();
    }

    /// Renews the lease where it is held.
    pub(super) async fn renew(&self) -> Result<Leased, DeclareError> {
        self.step(LeaseStep::Renew(LIVES + self.delay)).await
    }

    async fn step(&self, step: LeaseStep) -> Result<Leased, DeclareError> {
        let deadline = Instant::now() + self.lines.timeout;
        let step = self.lines.authority.lease(&self.scope, self.id, step);
        in_time(step, deadline).await
    }

    /// Whether the lease of a holder that has vanished is nobody's for a while.
    pub(super) const fn delays(&self) -> bool {
        !self.delay.is_zero()
    }

    /// Leaves what it has to run out.
    pub(super) fn vanish(&self) {
        // This one's and the map's own.
        let unused = |_: &Scope, line: &Arc<Line>| Arc::strong_count(line) <= 2;
        self.lines.lines.remove_if(&self.scope, unused);
    }

    /// Gives back what it has, in a task of its own. It may have been acquired without an answer.
    pub(super) fn leave(&self) {
        let place = self.clone();
        let giving_back = async move {
            place.give_back().await;
            place.vanish();
        };
        let Lines {
            handle, returns, ..
        } = &*self.lines;
        returns.spawn_on(giving_back, handle);
    }
}
