//! Leases: each has one holder, for as long as its session wants it. Sessions wait for a lease in a [`queue`].
//!
//! A lease only decides who takes the next token; the fence is the token. So a late or lost lease costs no more than
//! an unnecessary takeover.
//!
//! In the store a lease lives for [`LIVES`], and the proxy renews it for its session. If something is killed or cut
//! off, others wait no longer than that. The proxy decides how long a client may be silent. A lock delay in the
//! policy prolongs the lease. Then only an explicit release returns it, and otherwise others wait until it has run
//! out.

mod queue;
mod vacancy;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_authority::{Claim, Declaration, LeaseTime, Leased, Mark, Scope, Token};
use pgpalisade_fence::{Purpose, Terms};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::error::DeclareError;
use super::{Takeover, in_time};
pub(super) use queue::LeaseQueues;
use queue::QueueTicket;
use vacancy::HeldLease;

/// Lifetime of a lease in the store without renewal.
const LIVES: Duration = Duration::from_secs(15);
/// Number of renewals within that lifetime. Two thirds of it are left for renewals that fail.
const RENEWALS: u32 = 3;
/// Pause between attempts while the store does not answer.
const RETRY: Duration = Duration::from_millis(200);
/// Maximum attempts to take the next token while others declare tokens.
const TAKES_MAX: u32 = 8;

/// A candidacy for the lease of a scope. Dropping it gives the lease back, unless there is a lock delay.
struct Candidacy {
    ticket: QueueTicket,
    wanted: Mutex<LeaseDemand>,
    /// Signals that the lease is wanted for another time.
    changed: Notify,
    /// The token taken under the lease.
    token: OnceLock<Token>,
}

/// Time for which the client wants a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseDemand {
    WhileHeld,
    /// The client must ask again before this time.
    Until(Instant),
    /// The client has not asked again in time.
    NoMore,
    /// The client has given the lease back.
    GivenBack,
}

/// A lease acquired for a session, before a token is taken under it.
pub struct Acquired {
    candidacy: Arc<Candidacy>,
    /// The last time when another held the lease, if this candidacy has waited.
    others_at: Option<Instant>,
    renewing: AbortOnDropHandle<()>,
}

/// The lease of a scope, held with the token that was taken under it. Dropping it gives the lease back. With a lock
/// delay it runs out instead: its holder has vanished.
pub struct Lease {
    candidacy: Arc<Candidacy>,
    mark: Mark,
    _renewing: AbortOnDropHandle<()>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({}={})", self.scope(), self.mark.token)
    }
}

impl Acquired {
    /// Scope of the lease.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.candidacy.ticket.scope
    }
}

impl Lease {
    /// Scope of the lease.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.candidacy.ticket.scope
    }

    /// The mark that was raised under the lease.
    #[must_use]
    pub const fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Gives the lease back at once, because its holder has stopped working under it.
    pub fn give_back(self) {
        *self.candidacy.wanted.lock() = LeaseDemand::GivenBack;
    }
}

impl Candidacy {
    /// Renews the lease while the client wants it, and calls `lost` if that becomes impossible. The lease counts as
    /// lost a third of its lifetime before its end, so that nobody else holds it by then.
    async fn keep(self: Arc<Self>, mut asked_at: Instant, lost: impl FnOnce() + Send) {
        let held = HeldLease::new(Arc::clone(&self));
        loop {
            let next = asked_at + LIVES / RENEWALS;
            let wake = self.wanted_until().map_or(next, |until| until.min(next));
            // Also wakes if the client asks for a time that ends sooner.
            let _ = timeout_at(wake, self.changed.notified()).await;
            if !self.is_wanted() {
                drop(held);
                if !self.ticket.delays() {
                    self.ticket.give_back().await;
                }
                return;
            }
            if Instant::now() < next {
                continue;
            }
            let renewed = timeout_at(asked_at + LIVES * 2 / 3, async {
                loop {
                    let asked_at = Instant::now();
                    match self.ticket.renew().await {
                        Ok(Leased::Held) => return Some(asked_at),
                        Ok(Leased::NotHeld) => return None,
                        Err(_) => sleep(RETRY).await,
                    }
                }
            });
            let renewed = renewed.await;
            held.renewed(next.elapsed());
            match renewed {
                Ok(Some(renewed_at)) => asked_at = renewed_at,
                Ok(None) | Err(_) => return lost(),
            }
        }
    }

    fn wanted_until(&self) -> Option<Instant> {
        match *self.wanted.lock() {
            LeaseDemand::Until(until) => Some(until),
            LeaseDemand::WhileHeld | LeaseDemand::NoMore | LeaseDemand::GivenBack => None,
        }
    }

    /// Whether the client still wants the lease. Once false, it stays false.
    fn is_wanted(&self) -> bool {
        let mut wanted = self.wanted.lock();
        if matches!(*wanted, LeaseDemand::Until(until) if until <= Instant::now()) {
            *wanted = LeaseDemand::NoMore;
        }
        !matches!(*wanted, LeaseDemand::NoMore | LeaseDemand::GivenBack)
    }

    /// Sets the time for which the client wants the lease, from now on. Too late if the lease is being given back.
    fn want(&self, time: LeaseTime) -> Leased {
        let mut wanted = self.wanted.lock();
        if matches!(*wanted, LeaseDemand::NoMore | LeaseDemand::GivenBack) {
            return Leased::NotHeld;
        }
        *wanted = match time {
            LeaseTime::WhileHeld | LeaseTime::NoWait => LeaseDemand::WhileHeld,
            LeaseTime::Asked(_) => LeaseDemand::Until(Instant::now() + time.duration()),
        };
        self.changed.notify_one();
        Leased::Held
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        // A holder without a token has done nothing.
        let has_vanished =
            self.token.get().is_some() && *self.wanted.get_mut() != LeaseDemand::GivenBack;
        if has_vanished && self.ticket.delays() {
            self.ticket.vanish();
        } else {
            self.ticket.leave();
        }
    }
}

impl Takeover {
    /// Acquires the lease of a scope. Waits for it until `until`, in the queue of this proxy; sessions that are only
    /// observed do not wait. Calls `lost` if a held lease cannot be renewed any more.
    ///
    /// Errors: [`DeclareError::LeaseHeld`] if others have held it all the time, or the authority has not answered.
    pub async fn acquire_lease(
        &self,
        scope: &Scope,
        terms: &Terms,
        until: Instant,
        lost: impl FnOnce() + Send + 'static,
    ) -> Result<Acquired, DeclareError> {
        let queues = &self.inner.lease_queues;
        let until = match terms.purpose {
            Purpose::Admit => until,
            Purpose::Observe | Purpose::ObserveUnregistered => Instant::now(),
        };
        let candidacy = Arc::new(Candidacy {
            ticket: queues.stand(scope, terms.bounds.lock_delay.unwrap_or_default()),
            wanted: Mutex::new(LeaseDemand::WhileHeld),
            changed: Notify::new(),
            token: OnceLock::new(),
        });
        let (waits, gone) = (Arc::clone(&candidacy), CancellationToken::new());
        // A caller that goes away leaves the queue. A request to the store is not cut off by that: it could overtake
        // the release that follows.
        let _leaves = gone.clone().drop_guard();
        let waiting = async move { waits.ticket.acquire(until, &gone).await };
        let acquired = queues.tasks.spawn_on(waiting, &queues.handle).await;
        let turn = acquired.unwrap_or(Err(DeclareError::LeaseHeld { unanswered: None }))?;
        let keeping = Arc::clone(&candidacy).keep(turn.asked_at, lost);
        Ok(Acquired {
            candidacy,
            others_at: turn.others_at,
            renewing: AbortOnDropHandle::new(queues.handle.spawn(keeping)),
        })
    }

    /// Takes the next token under a lease.
    ///
    /// Errors: those of [`Self::declare`].
    pub async fn take_under(
        &self,
        acquired: Acquired,
        declaration: &Declaration,
        time: LeaseTime,
        terms: Terms,
    ) -> Result<Lease, DeclareError> {
        let mark = self.take_after_the_mark(declaration, terms).await?;
        let (candidacy, vacancies) = (acquired.candidacy, &self.inner.lease_queues.vacancies);
        vacancies.over(&candidacy.ticket.scope, mark.token, acquired.others_at);
        let _first = candidacy.token.set(mark.token);
        let _just_acquired = candidacy.want(time);
        Ok(Lease {
            candidacy,
            mark,
            _renewing: acquired.renewing,
        })
    }

    /// Prolongs a lease that the client has. Says whether it is held, and its token is still the mark.
    ///
    /// Errors: [`DeclareError::LeaseHeld`] if the authority does not answer; the lease is still held then.
    pub async fn renew_lease(
        &self,
        lease: &Lease,
        time: LeaseTime,
    ) -> Result<Leased, DeclareError> {
        let cached = self.inner.marks.find(lease.scope());
        let is_over = cached.is_some_and(|cached| cached.mark_above(lease.mark.token).is_some());
        if is_over || lease.candidacy.want(time) == Leased::NotHeld {
            return Ok(Leased::NotHeld);
        }
        let ticket = lease.candidacy.ticket.clone();
        let renew = async move { ticket.renew().await };
        let renewed = self.run(renew).await;
        renewed.map_err(|error| DeclareError::LeaseHeld {
            unanswered: Some(error.to_string()),
        })
    }

    /// Waits until the leases of ended sessions are given back, for at most a second.
    pub async fn give_back_leases(&self) {
        self.inner.lease_queues.close().await;
    }

    /// Takes the token after the mark that is read while the lease is held. A session that held the lease before, and
    /// slept since, takes none.
    async fn take_after_the_mark(
        &self,
        declaration: &Declaration,
        terms: Terms,
    ) -> Result<Mark, DeclareError> {
        let mut takes = 0;
        loop {
            let (inner, scope) = (Arc::clone(&self.inner), declaration.scope.clone());
            let deadline = self.deadline();
            let read = async move { in_time(inner.driver.authority.mark(&scope), deadline).await };
            let mark = self.run(read).await?.map(|mark| mark.token);
            let take = Declaration {
                claim: Claim::After(mark),
                ..declaration.clone()
            };
            takes += 1;
            match self.declare(take, terms.clone(), deadline).await {
                Err(DeclareError::Stale { .. } | DeclareError::MarkIsLower { .. })
                    if takes < TAKES_MAX => {}
                declared => return declared,
            }
        }
    }
}
