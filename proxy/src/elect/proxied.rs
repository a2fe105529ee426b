//! Locks that a session through the proxy holds: the lease of a scope, or an advisory lock of PostgreSQL.
//!
//! Lock and token belong to one session, and are lost together. An advisory lock is held for as long as its session
//! lives; a lease also ends if it is not renewed in time, for example by a stopped process. Source:
//! <https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS>

use std::time::Duration;

use async_trait::async_trait;
use pgpalisade_authority::{Claim, LeaseTime, Leased, Scope, Token};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;

use super::lease::{LATE, Lease};
use super::lock::{Candidate, LockError, Patience};
use super::session::{
    LastWords, Proxied, ProxySession, SHOW_TOKEN, Unasked, failed, first_value, own_token,
};

/// Interval between attempts to take an advisory lock.
const ATTEMPT_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy)]
pub(crate) enum LockKind {
    /// `pg_advisory_lock` with this key.
    AdvisoryLock(i64),
    /// The scope's lease.
    Lease(LeaseTime),
}

/// A session that waits for the lock, or holds it.
pub(super) struct ProxiedCandidate {
    session: ProxySession,
    kind: LockKind,
    /// The time for which the lock is surely held.
    lease: Lease,
    /// The token of its term.
    token: Option<Token>,
}

impl ProxiedCandidate {
    pub(super) async fn log_in(kind: LockKind, proxied: &Proxied) -> Result<Self, LockError> {
        Ok(Self {
            session: ProxySession::log_in(proxied).await?,
            kind,
            lease: Lease {
                ttl: proxied.ttl,
                asked_at: Instant::now(),
            },
            token: None,
        })
    }

    async fn renew(&self) -> Result<Leased, LockError> {
        let ProxySession {
            client, scope, end, ..
        } = &self.session;
        renew((client, end), self.kind, scope, self.token).await
    }
}

#[async_trait(?Send)]
impl Candidate for ProxiedCandidate {
    async fn elected(&mut self, patience: Patience) -> Result<Token, LockError> {
        match (self.kind, patience) {
            (LockKind::AdvisoryLock(id), _) => {
                // Waiting inside PostgreSQL would keep VACUUM from removing anything for as long as others lead.
                let attempt = format!("SELECT pg_catalog.pg_try_advisory_lock({id})");
                while self.session.ask(&attempt).await?.as_deref() != Some("t") {
                    if patience == Patience::NoWait {
                        return Err(LockError::Held("its session holds the lock".to_owned()));
                    }
                    sleep(ATTEMPT_EVERY).await;
                }
                self.session.claim(Claim::Next).await?;
            }
            // The proxy answers once the lease is free, or has not become free within its own duration.
            (LockKind::Lease(time), Patience::Waits) => loop {
                match self.session.claim(Claim::Lease(time)).await {
                    Ok(()) => break,
                    Err(Unasked::NotHad(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            },
            // The first renewal, below, sets its duration.
            (LockKind::Lease(_), Patience::NoWait) => {
                self.session.claim(Claim::Lease(LeaseTime::NoWait)).await?;
            }
        }
        let token = self.session.token().await?;
        self.token = Some(token);
        self.lease.asked_at = Instant::now();
        // The answer may have been under way for any time.
        if self.leads().await && self.lease.is_sure() {
            Ok(token)
        } else {
            Err(LockError::Lost(LATE.to_owned()))
        }
    }

    async fn lost(&mut self) -> String {
        let Self {
            session,
            kind,
            lease,
            token,
        } = self;
        let ProxySession {
            client,
            driver,
            scope,
            end,
            ..
        } = session;
        let renew = async || renew((&*client, &*end), *kind, scope, *token).await;
        let lost = tokio::select! {
            // First, since the renewal may have received the session's last words.
            biased;
            why = lease.lost(renew) => Some(why),
            _ = driver => None,
        };
        let ended = || "the session through the proxy has ended".to_owned();
        session.end.get().or(lost).unwrap_or_else(ended)
    }

    async fn leads(&self) -> bool {
        let left = self.lease.sure_until() - Instant::now();
        matches!(timeout(left, self.renew()).await, Ok(Ok(Leased::Held)))
    }

    /// Ending the session releases the lock.
    async fn resign(self: Box<Self>) {
        self.session.end().await;
    }
}

/// Renews a lease, and checks that the session still holds the token of its term.
async fn renew(
    (client, end): (&Client, &LastWords),
    kind: LockKind,
    scope: &Scope,
    token: Option<Token>,
) -> Result<Leased, LockError> {
    let ask = async |sql: &str| {
        let answer = client.simple_query(sql).await;
        answer.map_err(|error| {
            end.note(&error);
            failed(&error)
        })
    };
    match kind {
        LockKind::AdvisoryLock(_) => ask("").await.map(|_| Leased::Held),
        LockKind::Lease(time) => {
            ask(&format!(
                "SET fencing.token = '{scope}={}'",
                Claim::Lease(time)
            ))
            .await?;
            // If the lease has ended in between, the session has another token now.
            let shown = first_value(&ask(SHOW_TOKEN).await?).unwrap_or_default();
            Ok(if own_token(&shown, scope) == token {
                Leased::Held
            } else {
                Leased::NotHeld
            })
        }
    }
}
