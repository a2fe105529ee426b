//! Locks that a session through the proxy holds: the lease of a scope, or an advisory lock of PostgreSQL.
//!
//! Lock and token belong to one session: who loses the one, loses the other. An advisory lock is held for as long as
//! its session lives; a lease also ends where it is not renewed in time, as by a process that was stopped. Source:
//! <https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS>

use std::time::Duration;

use async_trait::async_trait;
use pgpalisade_authority::{Claim, LeaseTime, Leased, Scope, Token};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;

use super::lease::{LATE, Lease};
use super::lock::{Candidate, LockError, Patience};
use super::session::{
    LastWords, Proxied, SHOW_TOKEN, Session, Unasked, failed, first_value, own_token,
};

/// How often a candidate looks whether an advisory lock is free.
const ATTEMPT_EVERY: Duration = Duration::from_millis(500);

/// What holds the candidates apart.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// `pg_advisory_lock` with this key.
    AdvisoryLock(i64),
    /// The scope's lease.
    Lease(LeaseTime),
}

/// A session that waits for the lock, or holds it.
pub(super) struct ProxiedCandidate {
    session: Session,
    kind: Kind,
    /// How long the lock is surely held.
    lease: Lease,
    /// Of its term.
    token: Option<Token>,
}

impl ProxiedCandidate {
    pub(super) async fn log_in(kind: Kind, proxied: &Proxied) -> Result<Self, LockError> {
        Ok(Self {
            session: Session::log_in(proxied).await?,
            kind,
            lease: Lease {
                ttl: proxied.ttl,
                asked_at: Instant::now(),
            },
            token: None,
        })
    }

    async fn renew(&self) -> Result<Leased, LockError> {
        let Session {
            client, scope, end, ..
        } = &self.session;
        renew((client, end), self.kind, scope, self.token).await
    }
}

#[async_trait(?Send)]
impl Candidate for ProxiedCandidate {
    async fn elected(&mut self, patience: Patience) -> Result<Token, LockError> {
        match (self.kind, patience) {
            (Kind::AdvisoryLock(id), _) => {
                // One that waits inside of PostgreSQL would keep VACUUM from removing anything for as long as others
                // lead.
                let attempt = format!("SELECT pg_catalog.pg_try_advisory_lock({id})");
                while self.session.ask(&attempt).await?.as_deref() != Some("t") {
                    if patience == Patience::NoWait {
                        return Err(LockError::Held("its session holds the lock".to_owned()));
                    }
                    sleep(ATTEMPT_EVERY).await;
                }
                self.session.claim(Claim::Next).await?;
            }
            // The proxy answers once the lease is free, or has not become free for as long as it would live.
            (Kind::Lease(time), Patience::Waits) => loop {
                match self.session.claim(Claim::Lease(time)).await {
                    Ok(()) => break,
                    Err(Unasked::NotHad(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            },
            // Its time it gets with the first renewal, below.
            (Kind::Lease(_), Patience::NoWait) => {
                self.session.claim(Claim::Lease(LeaseTime::NoWait)).await?;
            }
        }
        let token = self.session.token().await?;
        self.token = Some(token);
        self.lease.asked_at = Instant::now();
        // Nobody knows how long the answer was under way.
        match self.leads().await && self.lease.is_sure() {
            true => Ok(token),
            false => Err(LockError::Lost(LATE.to_owned())),
        }
    }

    async fn lost(&mut self) -> String {
        let Self {
            session,
            kind,
            lease,
            token,
        } = self;
        let Session {
            client,
            driver,
            scope,
            end,
            ..
        } = session;
        let renew = async || renew((&*client, &*end), *kind, scope, *token).await;
        let lost = tokio::select! {
            // First, for it may have got the last words.
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

    /// The lock goes with its session.
    async fn resign(self: Box<Self>) {
        self.session.end().await;
    }
}

/// Has the lock renewed, where it has a time, and looks whether the session is still that of the term.
async fn renew(
    (client, end): (&Client, &LastWords),
    kind: Kind,
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
        Kind::AdvisoryLock(_) => ask("").await.map(|_| Leased::Held),
        Kind::Lease(time) => {
            ask(&format!(
                "SET fencing.token = '{scope}={}'",
                Claim::Lease(time)
            ))
            .await?;
            // Had it ended meanwhile, the session would have another token now.
            let shown = first_value(&ask(SHOW_TOKEN).await?).unwrap_or_default();
            Ok(match own_token(&shown, scope) == token {
                true => Leased::Held,
                false => Leased::NotHeld,
            })
        }
    }
}
