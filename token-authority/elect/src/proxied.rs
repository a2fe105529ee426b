//! Locks that a session through the proxy holds: the lease of a scope, or an advisory lock of PostgreSQL.
//!
//! Lock and token belong to one session, and are lost together. An advisory lock lives as long as its session; a
//! lease also ends if it is not renewed in time. Source:
//! <https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS>

use std::time::Duration;

use async_trait::async_trait;
use pgpalisade_authority::{Claim, LeaseTime, Leased, Token};
use tokio::time::{Instant, sleep, timeout_at};

use crate::candidate::{Candidate, LockError};
use crate::lease::{LATE, Lease};
use crate::session::{Proxied, ProxySession, Unasked};

/// Interval between attempts to take an advisory lock.
const ATTEMPT_EVERY: Duration = Duration::from_millis(500);

/// A session that waits for the lock, or holds it.
pub(crate) struct ProxiedCandidate {
    session: ProxySession,
    /// `None` for the lease.
    advisory_lock: Option<i64>,
    claim: Claim,
    /// The time for which the lock is surely held.
    lease: Lease,
    token: Option<Token>,
}

impl ProxiedCandidate {
    pub(crate) async fn log_in(
        advisory_lock: Option<i64>,
        proxied: &Proxied,
    ) -> Result<Self, LockError> {
        // A lease that is not renewed ends after this time, whatever it was taken for.
        let lives = match advisory_lock {
            None => proxied.ttl.min(LeaseTime::WHILE_HELD),
            Some(_) => proxied.ttl,
        };
        let seconds = u16::try_from(proxied.ttl.as_secs()).unwrap_or(u16::MAX);
        Ok(Self {
            session: ProxySession::log_in(proxied).await?,
            advisory_lock,
            claim: Claim::Lease(LeaseTime::Asked(seconds)),
            lease: Lease::new(lives),
            token: None,
        })
    }

    /// Takes the lock and the token.
    async fn take(&self, waits: bool) -> Result<(), LockError> {
        match (self.advisory_lock, waits) {
            (Some(id), _) => {
                // Waiting inside PostgreSQL would hold back VACUUM for as long as others lead.
                let attempt = format!("SELECT pg_catalog.pg_try_advisory_lock({id})");
                while self.session.ask(&attempt).await?.as_deref() != Some("t") {
                    if !waits {
                        return Err(LockError::Held("its session holds the lock".to_owned()));
                    }
                    sleep(ATTEMPT_EVERY).await;
                }
                Ok(self.session.claim(Claim::Next).await?)
            }
            // The proxy answers once the lease is free, or after the lease's duration; at once, if too many wait in
            // its pool.
            (None, true) => loop {
                match self.session.claim(self.claim).await {
                    Err(unasked) if unasked.has_no_lease() => sleep(ATTEMPT_EVERY).await,
                    taken => return Ok(taken?),
                }
            },
            // The first renewal sets its duration.
            (None, false) => {
                let lease = Claim::Lease(LeaseTime::NoWait);
                Ok(self.session.claim(lease).await?)
            }
        }
    }

    /// Renews a lease, and checks that the session still holds its token.
    async fn renew(&self) -> Result<Leased, Unasked> {
        if self.advisory_lock.is_some() {
            self.session.ask("").await?;
            return Ok(Leased::Held);
        }
        self.session.claim(self.claim).await?;
        // If the lease has ended in between, the session has another token.
        Ok(if self.session.own_token().await? == self.token {
            Leased::Held
        } else {
            Leased::NotHeld
        })
    }
}

#[async_trait(?Send)]
impl Candidate for ProxiedCandidate {
    async fn elected(&mut self, waits: bool) -> Result<Token, LockError> {
        self.take(waits).await?;
        let token = self.session.token().await?;
        self.token = Some(token);
        self.lease.renewed_at(Instant::now());
        // The answer may be late.
        if self.leads().await && self.lease.is_sure() {
            Ok(token)
        } else {
            Err(LockError::Lost(LATE.to_owned()))
        }
    }

    async fn lost(&self) -> String {
        let lost = tokio::select! {
            // First, since the renewal may have received the error that ended the session.
            biased;
            why = self.lease.lost(async || self.renew().await) => why,
            () = self.session.ended() => "the session through the proxy has ended".to_owned(),
        };
        self.session.last_words().unwrap_or(lost)
    }

    async fn leads(&self) -> bool {
        let renewed = timeout_at(self.lease.sure_until(), self.renew()).await;
        matches!(renewed, Ok(Ok(Leased::Held)))
    }

    /// Ending the session releases the lock.
    async fn resign(self: Box<Self>) {
        self.session.end().await;
    }
}
