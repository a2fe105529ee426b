//! Leases: the line of those who wait for one, and the one who holds it.
//!
//! A lease says who is to take the next token, and no more: the fence is the token. So all that a late or lost lease
//! costs is a takeover that need not have been.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use pgpalisade_authority::{Authority, LeaseId, LeaseStep, LeaseTime, Leased, Mark, Scope};
use pgpalisade_authority::{Claim, Declaration};
use pgpalisade_fence::Terms;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::error::DeclareError;
use super::{Takeover, in_time};

/// How often the first in the line looks whether the lease is free.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How many times a lease is renewed in its time.
const RENEWALS: u32 = 6;
/// Between two attempts to renew a lease.
const RETRY: Duration = Duration::from_millis(200);
/// How often the next token is taken anew because others have declared one meanwhile.
const TAKES_MAX: u32 = 8;

/// The lines of this proxy, one for each scope whose lease is waited for or held. Only the first in a line asks the
/// authority.
pub(super) struct Lines {
    authority: Arc<dyn Authority>,
    lines: DashMap<Scope, Arc<Line>>,
    timeout: Duration,
    handle: Handle,
}

#[derive(Default)]
struct Line {
    /// The place at the front. It is handed on in the order in which it was asked for.
    front: Mutex<()>,
    /// A session of this proxy has given the lease back.
    freed: Notify,
}

/// A candidacy for the lease of a scope. Dropped, it gives back what it holds.
struct Candidacy {
    lines: Arc<Lines>,
    line: Arc<Line>,
    scope: Scope,
    id: LeaseId,
    time: Duration,
}

/// The lease of a scope, held with the token that was taken under it. It is given back when this is dropped.
pub struct Lease {
    candidacy: Arc<Candidacy>,
    mark: Mark,
    time: LeaseTime,
    /// Whoever renews it: the proxy, or the client.
    _renewing: Option<AbortOnDropHandle<()>>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({}={})", self.scope(), self.mark.token)
    }
}

impl Lease {
    /// What it is of.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.candidacy.scope
    }

    /// How long it lives, and who renews it.
    #[must_use]
    pub const fn time(&self) -> LeaseTime {
        self.time
    }

    /// The mark that was raised under it.
    #[must_use]
    pub const fn mark(&self) -> &Mark {
        &self.mark
    }
}

impl Lines {
    pub(super) fn new(authority: &Arc<dyn Authority>, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            authority: Arc::clone(authority),
            lines: DashMap::new(),
            timeout,
            handle: Handle::current(),
        })
    }

    fn stand(self: &Arc<Self>, scope: &Scope, time: Duration) -> Candidacy {
        let line = Arc::clone(&self.lines.entry(scope.clone()).or_default());
        Candidacy {
            lines: Arc::clone(self),
            line,
            scope: scope.clone(),
            id: LeaseId::random(),
            time,
        }
    }
}

impl Candidacy {
    /// Waits for the lease for as long as it would live. The time that it surely lives from.
    async fn acquire(&self) -> Result<Instant, DeclareError> {
        let until = Instant::now() + self.time;
        let acquired = timeout_at(until, async {
            let _front = self.line.front.lock().await;
            loop {
                let asked_at = Instant::now();
                if self.step(LeaseStep::Acquire(self.time)).await? == Leased::Held {
                    return Ok(asked_at);
                }
                tokio::select! {
                    () = self.line.freed.notified() => {}
                    () = sleep(LOOK_EVERY) => {}
                }
            }
        });
        acquired.await.unwrap_or(Err(DeclareError::LeaseHeld))
    }

    /// Renews the lease for ever; ends where it is lost. A third of its time before its end it is taken for lost, so
    /// that nobody else holds it by then.
    async fn keep(self: Arc<Self>, mut asked_at: Instant) {
        loop {
            sleep_until(asked_at + self.time / RENEWALS).await;
            let renewed = timeout_at(asked_at + self.time * 2 / 3, async {
                loop {
                    let asked_at = Instant::now();
                    match self.step(LeaseStep::Renew(self.time)).await {
                        Ok(Leased::Held) => return Some(asked_at),
                        Ok(Leased::NotHeld) => return None,
                        Err(_) => sleep(RETRY).await,
                    }
                }
            });
            match renewed.await {
                Ok(Some(renewed_at)) => asked_at = renewed_at,
                Ok(None) | Err(_) => return,
            }
        }
    }

    async fn step(&self, step: LeaseStep) -> Result<Leased, DeclareError> {
        let deadline = Instant::now() + self.lines.timeout;
        let step = self.lines.authority.lease(&self.scope, self.id, step);
        in_time(step, deadline).await
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        let (lines, line, id) = (Arc::clone(&self.lines), Arc::clone(&self.line), self.id);
        let scope = self.scope.clone();
        // It may have been acquired without an answer.
        self.lines.handle.spawn(async move {
            let deadline = Instant::now() + lines.timeout;
            let release = lines.authority.lease(&scope, id, LeaseStep::Release);
            if let Err(error) = in_time(release, deadline).await {
                tracing::debug!(%error, %scope, "a lease was not given back; it ends by itself");
            }
            line.freed.notify_one();
            // This one's and the map's own.
            let unused = |_: &Scope, line: &Arc<Line>| Arc::strong_count(line) <= 2;
            lines.lines.remove_if(&scope, unused);
        });
    }
}

impl Takeover {
    /// Waits for the lease of a scope, for as long as it lives, and takes the next token under it. `lost` is called
    /// where the proxy renews it and cannot do so any more.
    ///
    /// Errors: [`DeclareError::LeaseHeld`] where others hold it all the time, and those of [`Self::declare`].
    pub async fn lease(
        &self,
        declaration: &Declaration,
        time: LeaseTime,
        terms: Terms,
        lost: impl FnOnce() + Send + 'static,
    ) -> Result<Lease, DeclareError> {
        let lines = &self.inner.lines;
        let candidacy = Arc::new(lines.stand(&declaration.scope, time.duration()));
        let waits = Arc::clone(&candidacy);
        let waiting = lines.handle.spawn(async move { waits.acquire().await });
        // Whoever goes away leaves the line.
        let acquired = AbortOnDropHandle::new(waiting).await;
        let asked_at = acquired.unwrap_or(Err(DeclareError::LeaseHeld))?;
        let keeping = Arc::clone(&candidacy).keep(asked_at);
        let keeping = lines.handle.spawn(async move {
            keeping.await;
            lost();
        });
        let renewing = AbortOnDropHandle::new(keeping);
        let mark = self.take_under_lease(declaration, terms).await?;
        let renewing = match time {
            LeaseTime::WhileHeld => Some(renewing),
            // It lives for its whole time from here on.
            LeaseTime::Asked(_) => {
                drop(renewing);
                let renews = Arc::clone(&candidacy);
                let renew = async move { renews.step(LeaseStep::Renew(renews.time)).await };
                self.run(renew).await.map(|_| None)?
            }
        };
        Ok(Lease {
            candidacy,
            mark,
            time,
            _renewing: renewing,
        })
    }

    /// Renews a lease that the client keeps. Whether it is held, and its token is still the mark.
    ///
    /// Errors: those of the authority.
    pub async fn renew_lease(&self, lease: &Lease) -> Result<Leased, DeclareError> {
        let cell = self.inner.cells.find(lease.scope());
        if cell.is_some_and(|cell| cell.mark_above(lease.mark.token).is_some()) {
            return Ok(Leased::NotHeld);
        }
        let renews = Arc::clone(&lease.candidacy);
        let renew = async move { renews.step(LeaseStep::Renew(renews.time)).await };
        self.run(renew).await
    }

    /// The token after the mark as it is once the lease is held: a session that has held it before, and slept since,
    /// takes none.
    async fn take_under_lease(
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
            match self.declare(take, terms, deadline).await {
                Err(DeclareError::Stale { .. } | DeclareError::MarkIsLower { .. })
                    if takes < TAKES_MAX => {}
                declared => return declared,
            }
        }
    }
}
