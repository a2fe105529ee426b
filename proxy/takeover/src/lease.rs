//! Leases: each has one holder, for as long as its session wants it. Sessions wait for a lease in a [`queue`].
//!
//! A lease only decides who takes the next token; the fence is the token. So a late or lost lease costs no more than
//! an unnecessary takeover.
//!
//! In the store a lease lives for [`LIVES`], and the proxy renews it for its session, when its [`Tenure`] says so. If
//! something is killed or cut off, others wait no longer than that. The proxy decides how long a client may be silent.
//! A lock delay in the policy prolongs the lease. Then only an explicit release returns it, and otherwise others wait
//! until it has run out.

mod queue;
pub(super) mod tenure;
mod vacancy;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_authority::{Claim, Declaration, LeaseTime, Leased, Mark, Scope, Token};
use pgpalisade_fence::mark_cache::CachedMark;
use pgpalisade_fence::{Purpose, Terms};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::error::DeclareError;
use super::{Takeover, in_time};
pub(super) use queue::LeaseQueues;
use queue::QueueTicket;
use tenure::{Due, LIVES, Tenure};
use vacancy::HeldLease;

/// Pause between attempts while the store does not answer.
const RETRY: Duration = Duration::from_millis(200);
/// Time in the queue for a proxy that campaigns for itself, before it asks again.
const CAMPAIGN: Duration = Duration::from_secs(600);
/// Maximum attempts to take the next token while others declare tokens.
const TAKES_MAX: u32 = 8;

/// A candidacy for the lease of a scope. Dropping it gives the lease back, unless there is a lock delay.
struct Candidacy {
    ticket: QueueTicket,
    /// Origin of the tenure's times.
    began: Instant,
    tenure: Mutex<Tenure>,
    /// Signals that the lease is wanted for another time.
    changed: Notify,
    /// The mark raised under the lease.
    taken: OnceLock<Mark>,
    /// For a session, the cached mark of that incarnation or a later one. A proxy that leads for its listener gives the
    /// lease back itself, after its connections are closed.
    deposes: OnceLock<Arc<CachedMark>>,
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
        self.candidacy.tenure.lock().give_back();
    }
}

impl Candidacy {
    /// Renews the lease while the client wants it, and calls `lost` if that becomes impossible.
    async fn keep(self: Arc<Self>, lost: impl FnOnce() + Send) {
        let held = HeldLease::new(Arc::clone(&self));
        loop {
            match self.due() {
                Due::Later(at) => {
                    // Also wakes if the client asks for a time that ends sooner.
                    let _ = timeout_at(self.began + at, self.changed.notified()).await;
                }
                Due::Renewal(by) => self.renew(by, &held).await,
                Due::Return => {
                    drop(held);
                    if !self.ticket.delays() {
                        self.ticket.give_back().await;
                    }
                    return;
                }
                Due::Loss => {
                    held.renewed(self.tenure.lock().late(self.began.elapsed()));
                    return lost();
                }
            }
        }
    }

    fn due(&self) -> Due {
        let mut tenure = self.tenure.lock();
        // With a pool, or where the scope is only observed, its client stays.
        if self.is_deposed() {
            tenure.end();
        }
        tenure.due(self.began.elapsed())
    }

    /// Whether a higher token, or a repair of the scope, has deposed the holder.
    fn is_deposed(&self) -> bool {
        let both = self.taken.get().zip(self.deposes.get());
        both.is_some_and(|(mark, cached)| {
            cached.incarnation() != mark.incarnation || !cached.is_current(mark.token)
        })
    }

    async fn renew(&self, by: Duration, held: &HeldLease) {
        let asked_at = self.began.elapsed();
        let answer = timeout_at(self.began + by, self.ticket.renew()).await;
        let (answer, now) = (answer.ok().and_then(Result::ok), self.began.elapsed());
        let mut tenure = self.tenure.lock();
        if answer == Some(Leased::Held) {
            held.renewed(tenure.late(now));
        }
        tenure.renewed(asked_at, now, answer);
    }

    /// Sets the time for which the client wants the lease, from now on. Too late if the lease is being given back.
    fn want(&self, time: LeaseTime) -> Leased {
        let wanted = self.tenure.lock().want(self.began.elapsed(), time);
        self.changed.notify_one();
        wanted
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        // A holder without a token has done nothing.
        let has_vanished = self.taken.get().is_some() && !self.tenure.get_mut().is_given_back();
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
            began: Instant::now(),
            tenure: Mutex::default(),
            changed: Notify::new(),
            taken: OnceLock::new(),
            deposes: OnceLock::new(),
        });
        let (waits, gone) = (Arc::clone(&candidacy), CancellationToken::new());
        // A caller that goes away leaves the queue. A request to the store is not cut off by that: it could overtake
        // the release that follows.
        let _leaves = gone.clone().drop_guard();
        let waiting = async move { waits.ticket.acquire(until, &gone).await };
        let acquired = queues.tasks.spawn_on(waiting, &queues.handle).await;
        let turn = acquired.unwrap_or(Err(DeclareError::LeaseHeld { unanswered: None }))?;
        *candidacy.tenure.lock() = Tenure::new(turn.asked_at - candidacy.began);
        let keeping = Arc::clone(&candidacy).keep(lost);
        Ok(Acquired {
            candidacy,
            others_at: turn.others_at,
            renewing: AbortOnDropHandle::new(queues.tasks.spawn_on(keeping, &queues.handle)),
        })
    }

    /// Acquires the lease of a scope for the proxy itself, and takes the next token under it, as
    /// [`Self::declare_for_nobody`] does. It may wait long, so the terms are asked for again before the take.
    ///
    /// Errors: those of [`Self::acquire_lease`] and [`Self::declare`], and a claim that the terms do not allow.
    pub async fn lead(
        &self,
        scope: &Scope,
        by: &str,
        terms: impl Fn() -> Terms,
        lost: impl FnOnce() + Send + 'static,
    ) -> Result<Lease, DeclareError> {
        let time = LeaseTime::WhileHeld;
        self.check_claim(Claim::Lease(time), &terms())?;
        let until = Instant::now() + CAMPAIGN;
        let acquired = self.acquire_lease(scope, &terms(), until, lost).await?;
        let terms = terms();
        self.check_claim(Claim::Lease(time), &terms)?;
        let declaration = self.for_nobody(scope, Claim::Next, by)?;
        self.take(acquired, &declaration, time, terms).await
    }

    /// Takes the next token under a lease, which is given back once a higher token or a repair deposes its session.
    ///
    /// Errors: those of [`Self::declare`].
    pub async fn take_under(
        &self,
        acquired: Acquired,
        declaration: &Declaration,
        time: LeaseTime,
        terms: Terms,
    ) -> Result<Lease, DeclareError> {
        let lease = self.take(acquired, declaration, time, terms).await?;
        let cached = self.inner.marks.mark(lease.scope());
        let _first = lease.candidacy.deposes.set(cached);
        Ok(lease)
    }

    async fn take(
        &self,
        acquired: Acquired,
        declaration: &Declaration,
        time: LeaseTime,
        terms: Terms,
    ) -> Result<Lease, DeclareError> {
        let ticket = &acquired.candidacy.ticket;
        let mark = self.take_after_the_mark(ticket, declaration, terms).await?;
        let (candidacy, vacancies) = (acquired.candidacy, &self.inner.lease_queues.vacancies);
        vacancies.over(&candidacy.ticket.scope, mark.token, acquired.others_at);
        let _first = candidacy.taken.set(mark.clone());
        let _just_acquired = candidacy.want(time);
        Ok(Lease {
            candidacy,
            mark,
            _renewing: acquired.renewing,
        })
    }

    /// Prolongs a lease that the client has. Says whether it is held, and its token is the mark as far as known here.
    ///
    /// Errors: [`DeclareError::LeaseHeld`] if the authority does not answer; the lease is still held then.
    pub async fn renew_lease(
        &self,
        lease: &Lease,
        time: LeaseTime,
    ) -> Result<Leased, DeclareError> {
        if lease.candidacy.is_deposed() || lease.candidacy.want(time) == Leased::NotHeld {
            return Ok(Leased::NotHeld);
        }
        let ticket = lease.candidacy.ticket.clone();
        let renew = async move { ticket.renew().await };
        let renewed = self.run(renew).await;
        renewed.map_err(|error| DeclareError::LeaseHeld {
            unanswered: Some(error.to_string()),
        })
    }

    /// The mark of a scope, asked of the authority.
    ///
    /// Errors: those of the authority; it has time until the deadline.
    pub async fn read_mark(
        &self,
        scope: &Scope,
        deadline: Instant,
    ) -> Result<Option<Token>, DeclareError> {
        let (inner, scope) = (Arc::clone(&self.inner), scope.clone());
        let read = async move { in_time(inner.driver.authority.mark(&scope), deadline).await };
        Ok(self.run(read).await?.map(|mark| mark.token))
    }

    /// Waits until the leases of ended sessions are given back, for at most a second.
    pub async fn give_back_leases(&self) {
        self.inner.lease_queues.close().await;
    }

    /// Takes the token after the mark that is read while the lease is held. Whoever held the lease before, and slept
    /// since, takes none.
    async fn take_after_the_mark(
        &self,
        ticket: &QueueTicket,
        declaration: &Declaration,
        terms: Terms,
    ) -> Result<Mark, DeclareError> {
        let mut takes = 0;
        loop {
            let deadline = self.deadline();
            let mark = self.read_mark(&declaration.scope, deadline).await?;
            let (held, scope) = (ticket.clone(), declaration.scope.clone());
            // A later holder has raised the mark before it is read here, or not at all before the take.
            let renew = async move { held.renew_until(deadline).await };
            if self.run(renew).await? == Leased::NotHeld {
                tracing::warn!(%scope, "the lease has passed on before its token was taken");
                return Err(DeclareError::LeaseHeld { unanswered: None });
            }
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
