//! Locks that a session through the proxy holds: the lease of a scope, or an advisory lock of PostgreSQL.
//!
//! Lock and token belong to one session: who loses the one, loses the other. An advisory lock is held for as long as
//! its session lives; a lease also ends where it is not renewed in time, as by a process that was stopped. Source:
//! <https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS>

use std::error::Error as _;
use std::time::Duration;

use pgpalisade_authority::{Claim, LeaseTime, Leased, Scope, Token};
use pgpalisade_tls::{ConnectError, Login};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::lease::{LATE, Lease};
use super::lock::{LockError, Patience};
use crate::config::Secret;
use crate::fence::TokenValue;
use crate::rejection::LEASE_IS_ANOTHERS;

/// How often a candidate looks whether an advisory lock is free.
const ATTEMPT_EVERY: Duration = Duration::from_millis(500);
/// What a session gets to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// Which lock.
#[derive(Debug)]
pub(crate) struct ProxiedLock {
    /// Through the proxy.
    pub(super) login: Secret<Login>,
    pub(super) kind: Kind,
    /// What the token is for.
    pub(super) scope: Scope,
    /// The lock is taken for lost where nothing is heard for so long. Whole seconds.
    pub(super) ttl: Duration,
}

/// What holds the candidates apart.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// `pg_advisory_lock` with this key.
    AdvisoryLock(i64),
    /// The scope's lease.
    Lease(LeaseTime),
}

/// A session that waits for the lock, or holds it.
pub(super) struct Candidate {
    session: Session,
    kind: Kind,
    /// How long the lock is surely held.
    lease: Lease,
    /// Of its term.
    token: Option<Token>,
}

/// A session through the proxy.
struct Session {
    client: Client,
    /// Ends with the session, and says how.
    driver: JoinHandle<Result<(), tokio_postgres::Error>>,
    scope: Scope,
    answers_within: Duration,
}

/// Why a statement has no answer.
enum Unasked {
    /// Others hold the lease, or nobody knows who does.
    NotHad(LockError),
    Failed(LockError),
}

impl From<Unasked> for LockError {
    fn from(unasked: Unasked) -> Self {
        match unasked {
            Unasked::NotHad(error) | Unasked::Failed(error) => error,
        }
    }
}

impl Candidate {
    pub(super) async fn log_in(lock: &ProxiedLock) -> Result<Self, LockError> {
        Ok(Self {
            session: Session::log_in(lock).await?,
            kind: lock.kind,
            lease: Lease {
                ttl: lock.ttl,
                asked_at: Instant::now(),
            },
            token: None,
        })
    }

    pub(super) async fn elected(&mut self, patience: Patience) -> Result<Token, LockError> {
        match (self.kind, patience) {
            (Kind::AdvisoryLock(id), _) => {
                // One that waits inside of PostgreSQL would keep VACUUM from removing anything for as long as others
                // lead.
                let attempt = format!("SELECT pg_catalog.pg_try_advisory_lock({id})");
                while self.session.ask(&attempt).await?.as_deref() != Some("t") {
                    if patience == Patience::NoWait {
                        return Err(LockError::Held("its session has the lock".to_owned()));
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
                    Err(Unasked::Failed(error)) => return Err(error),
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

    /// Waits until the session has ended, or the lock cannot be renewed.
    pub(super) async fn lost(&mut self) -> String {
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
            ..
        } = session;
        let renew = async || renew(client, *kind, scope, *token).await;
        tokio::select! {
            ended = driver => match ended {
                Ok(Err(error)) => words(&error),
                Ok(Ok(())) | Err(_) => "the session through the proxy has ended".to_owned(),
            },
            why = lease.lost(renew) => why,
        }
    }

    pub(super) async fn leads(&self) -> bool {
        let left = self.lease.sure_until() - Instant::now();
        matches!(timeout(left, self.renew()).await, Ok(Ok(Leased::Held)))
    }

    /// The lock goes with its session.
    pub(super) async fn resign(self) {
        let Session { client, driver, .. } = self.session;
        drop(client);
        let abort = driver.abort_handle();
        // What has ended may have told so before, and is not asked again.
        if !driver.is_finished() && timeout(GOODBYE, driver).await.is_err() {
            abort.abort();
        }
    }

    async fn renew(&self) -> Result<Leased, LockError> {
        let Session { client, scope, .. } = &self.session;
        renew(client, self.kind, scope, self.token).await
    }
}

impl Session {
    async fn log_in(lock: &ProxiedLock) -> Result<Self, LockError> {
        let within = lock.ttl;
        let login = timeout(within, lock.login.expose().connect()).await;
        let login = login.map_err(|_| LockError::Silent("the proxy", within))?;
        let (client, connection) = login.map_err(|error| match error {
            ConnectError::Server(error) => failed(&error),
            ConnectError::Files(error) => LockError::Session(error.to_string()),
        })?;
        Ok(Self {
            client,
            driver: tokio::spawn(connection),
            scope: lock.scope.clone(),
            answers_within: within,
        })
    }

    /// Has the session declare a token that the proxy finds.
    async fn claim(&self, claim: Claim) -> Result<(), Unasked> {
        let claim = format!("SET fencing.token = '{}={claim}'", self.scope);
        self.ask(&claim).await.map(drop)
    }

    /// The token that it holds.
    async fn token(&self) -> Result<Token, LockError> {
        let shown = self.ask(SHOW).await?.unwrap_or_default();
        own_token(&shown, &self.scope).ok_or_else(|| {
            LockError::Session(
                "no token was given: what answers there is no pgpalisade, or only observes this scope".to_owned(),
            )
        })
    }

    /// The first value of the answer, where there is one. A lease is waited for as long as it lives.
    async fn ask(&self, sql: &str) -> Result<Option<String>, Unasked> {
        let answer = timeout(self.answers_within * 2, self.client.simple_query(sql)).await;
        let answer = answer.map_err(|_| {
            Unasked::Failed(LockError::Silent("the proxy", self.answers_within * 2))
        })?;
        match answer {
            Ok(rows) => Ok(first_value(&rows)),
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                let words = words(&error);
                Err(Unasked::NotHad(match words.contains(LEASE_IS_ANOTHERS) {
                    true => LockError::Held(words),
                    false => LockError::Session(words),
                }))
            }
            Err(error) => Err(Unasked::Failed(failed(&error))),
        }
    }
}

const SHOW: &str = "SHOW fencing.token";

/// Has the lock renewed, where it has a time, and looks whether the session is still that of the term.
async fn renew(
    client: &Client,
    kind: Kind,
    scope: &Scope,
    token: Option<Token>,
) -> Result<Leased, LockError> {
    let ask = async |sql: &str| {
        client
            .simple_query(sql)
            .await
            .map_err(|error| failed(&error))
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
            let shown = first_value(&ask(SHOW).await?).unwrap_or_default();
            Ok(match own_token(&shown, scope) == token {
                true => Leased::Held,
                false => Leased::NotHeld,
            })
        }
    }
}

fn first_value(rows: &[SimpleQueryMessage]) -> Option<String> {
    rows.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

/// The token of a scope in what `SHOW fencing.token` shows.
fn own_token(shown: &str, scope: &Scope) -> Option<Token> {
    let value = TokenValue::parse(shown, scope).ok().flatten()?;
    let own = value.claims().iter().find(|(named, _)| named == scope);
    match own {
        Some((_, Claim::Token(token))) => Some(*token),
        _ => None,
    }
}

fn failed(error: &tokio_postgres::Error) -> LockError {
    LockError::Session(words(error))
}

/// What the server says, or what is wrong with the way to it.
fn words(error: &tokio_postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        let hint = said.hint().map(|hint| format!(" ({hint})"));
        return format!("{}{}", said.message(), hint.unwrap_or_default());
    }
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
