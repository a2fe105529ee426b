//! Leases: who holds one, for as long as its session wants it. Who waits for one stands in a [`line`].
//!
//! A lease says who is to take the next token, and no more: the fence is the token. So all that a late or lost lease
//! costs is a takeover that need not have been.
//!
//! In the store a lease lives for [`LIVES`], whoever holds it, and the proxy renews it for its session: so whatever is
//! killed or cut off, nobody waits for longer. How long a client may be silent is the proxy's to see. Where the policy
//! has a lock delay it lives for so much longer, and only who says so gives it back: others wait until it has run out.

mod line;
mod vacancy;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_authority::{Claim, Declaration, LeaseTime, Leased, Mark, Scope, Token};
use pgpalisade_fence::{Purpose, Terms};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::error::DeclareError;
use super::{Takeover, in_time};
pub(super) use line::Lines;
use line::Place;
use vacancy::Held;

/// What a lease lives in the store without being renewed.
const LIVES: Duration = Duration::from_secs(15);
/// How many times a lease is renewed in its time. Two thirds of it are left for what makes a renewal fail.
const RENEWALS: u32 = 3;
/// Between two attempts at what the store does not answer.
const RETRY: Duration = Duration::from_millis(200);
/// How often the next token is taken anew because others have declared one meanwhile.
const TAKES_MAX: u32 = 8;

/// A candidacy for the lease of a scope. Dropped, it gives back what it holds, unless there is a lock delay.
struct Candidacy {
    place: Place,
    wanted: Mutex<Wanted>,
    /// It is wanted for another time.
    changed: Notify,
    /// Taken under it.
    token: OnceLock<Token>,
}

/// For how long the client wants a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    WhileHeld,
    /// Unless it says so again.
    Until(Instant),
    /// It has not said so in time.
    NoMore,
    /// It has given it back.
    GivenBack,
}

/// A lease that was acquired for a session, under which no token was taken yet.
pub struct Acquired {
    candidacy: Arc<Candidacy>,
    /// When it was last another's, where this one has waited.
    others_at: Option<Instant>,
    renewing: AbortOnDropHandle<()>,
}

/// The lease of a scope, held with the token that was taken under it. It is given back when this is dropped, or has run
/// out where there is a lock delay: for that is whose holder has vanished.
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
    /// What it is of.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        self.candidacy.place.scope()
    }
}

impl Lease {
    /// What it is of.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        self.candidacy.place.scope()
    }

    /// The mark that was raised under it.
    #[must_use]
    pub const fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Gives it back at once: its holder has said that it works under it no more.
    pub fn give_back(self) {
        *self.candidacy.wanted.lock() = Wanted::GivenBack;
    }
}

impl Candidacy {
    /// Renews the lease for as long as the client wants it, and calls `lost` where that cannot be done any more. A
    /// third of its time before its end it is taken for lost, so that nobody else holds it by then.
    async fn keep(self: Arc<Self>, mut asked_at: Instant, lost: impl FnOnce() + Send) {
        let held = Held::new(Arc::clone(&self));
        loop {
            let next = asked_at + LIVES / RENEWALS;
            let wake = self.wanted_until().map_or(next, |until| until.min(next));
            // Also where its time is asked for anew meanwhile, and is over sooner.
            let _ = timeout_at(wake, self.changed.notified()).await;
            if !self.is_wanted() {
                drop(held);
                match self.place.delays() {
                    true => return,
                    false => return self.place.give_back().await,
                }
            }
            if Instant::now() < next {
                continue;
            }
            let renewed = timeout_at(asked_at + LIVES * 2 / 3, async {
                loop {
                    let asked_at = Instant::now();
                    match self.place.renew().await {
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
            Wanted::Until(until) => Some(until),
            Wanted::WhileHeld | Wanted::NoMore | Wanted::GivenBack => None,
        }
    }

    /// Whether the client wants it still. Where it does not, it never will again.
    fn is_wanted(&self) -> bool {
        let mut wanted = self.wanted.lock();
        if matches!(*wanted, Wanted::Until(until) if until <= Instant::now()) {
            *wanted = Wanted::NoMore;
        }
        !matches!(*wanted, Wanted::NoMore | Wanted::GivenBack)
    }

    /// The client wants it from now on for this time. Too late where it is being given back.
    fn want(&self, time: LeaseTime) -> Leased {
        let mut wanted = self.wanted.lock();
        if matches!(*wanted, Wanted::NoMore | Wanted::GivenBack) {
            return Leased::NotHeld;
        }
        *wanted = match time {
            LeaseTime::WhileHeld | LeaseTime::NoWait => Wanted::WhileHeld,
            LeaseTime::Asked(_) => Wanted::Until(Instant::now() + time.duration()),
        };
        self.changed.notify_one();
        Leased::Held
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        // Who has taken no token under it has done nothing.
        let has_vanished =
            self.token.get().is_some() && *self.wanted.get_mut() != Wanted::GivenBack;
        match has_vanished && self.place.delays() {
            true => self.place.vanish(),
            false => self.place.leave(),
        }
    }
}

impl Takeover {
    /// Acquires the lease of a scope. Waits for it until then, in the line of this proxy; who is only observed does not
    /// wait. `lost` is called where it cannot be renewed any more while it is held.
    ///
    /// Errors: [`DeclareError::LeaseHeld`] where others have held it all the time, or the authority has not answered.
    pub async fn acquire_lease(
        &self,
        scope: &Scope,
        terms: &Terms,
        until: Instant,
        lost: impl FnOnce() + Send + 'static,
    ) -> Result<Acquired, DeclareError> {
        let lines = &self.inner.lines;
        let until = match terms.purpose {
            Purpose::Admit => until,
            Purpose::Observe | Purpose::ObserveUnregistered => Instant::now(),
        };
        let candidacy = Arc::new(Candidacy {
            place: lines.stand(scope, terms.bounds.lock_delay.unwrap_or_default()),
            wanted: Mutex::new(Wanted::WhileHeld),
            changed: Notify::new(),
            token: OnceLock::new(),
        });
        let waits = Arc::clone(&candidacy);
        let waiting = lines
            .handle()
            .spawn(async move { waits.place.acquire(until).await });
        // Whoever goes away leaves the line.
        let acquired = AbortOnDropHandle::new(waiting).await;
        let turn = acquired.unwrap_or(Err(DeclareError::LeaseHeld { unanswered: None }))?;
        let keeping = Arc::clone(&candidacy).keep(turn.asked_at, lost);
        Ok(Acquired {
            candidacy,
            others_at: turn.others_at,
            renewing: AbortOnDropHandle::new(lines.handle().spawn(keeping)),
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
        let Acquired {
            candidacy,
            others_at,
            renewing,
        } = acquired;
        let vacancies = &self.inner.lines.vacancies;
        vacancies.over(candidacy.place.scope(), mark.token, others_at);
        let _first = candidacy.token.set(mark.token);
        let _just_acquired = candidacy.want(time);
        Ok(Lease {
            candidacy,
            mark,
            _renewing: renewing,
        })
    }

    /// The client says that it wants a lease that it has. Whether it is held, and its token is still the mark.
    ///
    /// Errors: [`DeclareError::LeaseHeld`] where the authority does not answer; it is held all the same.
    pub async fn renew_lease(
        &self,
        lease: &Lease,
        time: LeaseTime,
    ) -> Result<Leased, DeclareError> {
        let cell = self.inner.cells.find(lease.scope());
        let is_over = cell.is_some_and(|cell| cell.mark_above(lease.mark.token).is_some());
        if is_over || lease.candidacy.want(time) == Leased::NotHeld {
            return Ok(Leased::NotHeld);
        }
        let place = lease.candidacy.place.clone();
        let renew = async move { place.renew().await };
        let renewed = self.run(renew).await;
        renewed.map_err(|error| DeclareError::LeaseHeld {
            unanswered: Some(error.to_string()),
        })
    }

    /// Waits until the leases of sessions that have ended are given back, for a second at most.
    pub async fn give_back_leases(&self) {
        self.inner.lines.close().await;
    }

    /// The token after the mark as it is once the lease is held: a session that has held it before, and slept since,
    /// takes none.
    async fn take_after_the_mark(
        &self,
        declaration: &Declaration,
        terms: Terms,
    ) -> Result<Mark, DeclareError> {
        let mut takes = 0;
        loop {
            let (inner, scope) = (Arc::clone(&self.inner), declaration.scope.clone());
            let deadline = self.deadline();
            let read = async move { in_time(inner.authority.mark(&scope), deadline).await };
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
