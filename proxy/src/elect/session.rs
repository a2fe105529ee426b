//! Sessions through the proxy in which a candidate declares.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pgpalisade_authority::{Claim, Scope, Token};
use pgpalisade_tls::{Login, Secret, words};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::{Client, SimpleQueryMessage};

use super::lock::LockError;
use crate::config::address_of;
use crate::fence::TokenValue;
use crate::rejection::LEASE_IS_ANOTHERS;
use crate::server::hosts::UpstreamAddr;

pub(super) const SHOW_TOKEN: &str = "SHOW fencing.token";
/// PostgreSQL lacks this setting, but accepts any `fencing.token`:
/// <https://www.postgresql.org/docs/current/runtime-config-custom.html>.
const SHOW_STATUS: &str = "SHOW fencing.status";
/// Time that a session gets to end.
const GOODBYE: Duration = Duration::from_secs(1);
/// A token that is not above the mark: `docs/errors.md`.
const STALE: &str = "PF001";

/// The login through the proxy, which the leader's writes use too.
#[derive(Debug, Clone)]
pub(crate) struct Proxied {
    pub(crate) login: Secret<Login>,
    pub(crate) scope: Scope,
    /// The lock counts as lost after so long without an answer. Whole seconds.
    pub(crate) ttl: Duration,
}

impl Proxied {
    /// Checks that it leads to pgpalisade: writes that pass the proxy are not fenced. Bounded.
    pub(super) async fn check(&self) -> Result<(), LockError> {
        ProxySession::log_in(self).await?.end().await;
        Ok(())
    }
}

pub(super) struct ProxySession {
    pub(super) client: Client,
    /// Ends with the session.
    pub(super) driver: JoinHandle<()>,
    pub(super) end: LastWords,
    /// Address of the proxy.
    at: UpstreamAddr,
    pub(super) scope: Scope,
    answers_within: Duration,
}

/// The error that ended a session, in the words of its sender: it comes with an answer, or instead of one.
#[derive(Debug, Clone, Default)]
pub(super) struct LastWords(Arc<OnceLock<String>>);

impl LastWords {
    /// Ignores errors that end no session, and the bare report that the session is closed.
    pub(super) fn note(&self, error: &tokio_postgres::Error) {
        let severity = error.as_db_error().map(DbError::parsed_severity);
        let ends = severity.is_none_or(|severity| severity == Some(Severity::Fatal));
        if ends && !error.is_closed() {
            let _ = self.0.set(words(error));
        }
    }

    pub(super) fn get(&self) -> Option<String> {
        self.0.get().cloned()
    }
}

/// Failures of a statement.
pub(super) enum Unasked {
    /// Another holds the lease, or its holder is unknown.
    NotHad(LockError),
    /// The mark is above the token.
    Stale(LockError),
    /// The server does not know the setting.
    Unknown(LockError),
    Failed(LockError),
}

impl From<Unasked> for LockError {
    fn from(unasked: Unasked) -> Self {
        match unasked {
            Unasked::NotHad(error)
            | Unasked::Stale(error)
            | Unasked::Unknown(error)
            | Unasked::Failed(error) => error,
        }
    }
}

impl ProxySession {
    /// Logs in, at pgpalisade only. Bounded, as each answer is.
    pub(super) async fn log_in(proxied: &Proxied) -> Result<Self, LockError> {
        let Proxied { login, scope, ttl } = proxied;
        let login = login.expose();
        let at = address_of(&login.config);
        let connected = timeout(*ttl, login.connect()).await;
        let connected = connected.map_err(|_| LockError::Silent(at.clone(), *ttl))?;
        let (client, connection) = connected.map_err(|error| LockError::Connect {
            at: at.clone(),
            error,
        })?;
        let end = LastWords::default();
        let ended = end.clone();
        let driver = tokio::spawn(async move {
            let mut connection = pin!(connection);
            // Dropping the connection ends all waiting for answers: by then the reason is noted.
            if let Err(error) = connection.as_mut().await {
                ended.note(&error);
            }
        });
        let session = Self {
            client,
            driver,
            end,
            at: at.clone(),
            scope: scope.clone(),
            answers_within: *ttl,
        };
        match session.ask(SHOW_STATUS).await {
            Ok(_) => Ok(session),
            Err(error) => {
                session.end().await;
                Err(match error {
                    Unasked::Unknown(_) => LockError::NotProxied(at),
                    error => error.into(),
                })
            }
        }
    }

    /// Declares a token that the proxy chooses.
    pub(super) async fn claim(&self, claim: Claim) -> Result<(), Unasked> {
        let claim = format!("SET fencing.token = '{}={claim}'", self.scope);
        self.ask(&claim).await.map(drop)
    }

    /// The token that the session holds.
    pub(super) async fn token(&self) -> Result<Token, LockError> {
        let shown = self.ask(SHOW_TOKEN).await?.unwrap_or_default();
        own_token(&shown, &self.scope).ok_or_else(|| {
            LockError::Session(format!(
                "the proxy at {} gave no token: it only observes this scope",
                self.at
            ))
        })
    }

    /// The mark of the scope, as the proxy knows it. For a session without a token.
    pub(super) async fn mark(&self) -> Result<Option<Token>, LockError> {
        let scope = format!("SET fencing.scope = '{}'", self.scope);
        self.ask(&scope).await?;
        let shown = self.ask("SHOW fencing.mark").await?.unwrap_or_default();
        if shown.is_empty() {
            Ok(None)
        } else {
            shown.parse().map(Some).map_err(|_| {
                LockError::Session(format!("it shows {shown:?} as the mark of the scope"))
            })
        }
    }

    /// The first value of the answer, if any. Bounded by twice the TTL, since a lease is waited for as long as it
    /// lives.
    pub(super) async fn ask(&self, sql: &str) -> Result<Option<String>, Unasked> {
        let answer = timeout(self.answers_within * 2, self.client.simple_query(sql)).await;
        let answer = answer.map_err(|_| {
            Unasked::Failed(LockError::Silent(self.at.clone(), self.answers_within * 2))
        })?;
        let error = match answer {
            Ok(rows) => return Ok(first_value(&rows)),
            Err(error) => error,
        };
        Err(match error.code() {
            Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => {
                let words = words(&error);
                Unasked::NotHad(if words.contains(LEASE_IS_ANOTHERS) {
                    LockError::Held(words)
                } else {
                    LockError::Session(words)
                })
            }
            Some(code) if code.code() == STALE => Unasked::Stale(failed(&error)),
            Some(code) if *code == SqlState::UNDEFINED_OBJECT => Unasked::Unknown(failed(&error)),
            _ => Unasked::Failed(self.failed(&error)),
        })
    }

    fn failed(&self, error: &tokio_postgres::Error) -> LockError {
        let said = self.end.get().filter(|_| error.is_closed());
        said.map_or_else(|| failed(error), LockError::Session)
    }

    /// Ends the session. Bounded.
    pub(super) async fn end(self) {
        let Self { client, driver, .. } = self;
        drop(client);
        let abort = driver.abort_handle();
        // A driver that has finished must not be polled again.
        if !driver.is_finished() && timeout(GOODBYE, driver).await.is_err() {
            abort.abort();
        }
    }
}

pub(super) fn first_value(rows: &[SimpleQueryMessage]) -> Option<String> {
    rows.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

/// The token of a scope in the answer to `SHOW fencing.token`.
pub(super) fn own_token(shown: &str, scope: &Scope) -> Option<Token> {
    let value = TokenValue::parse(shown, scope).ok().flatten()?;
    let own = value.claims().iter().find(|(named, _)| named == scope);
    match own {
        Some((_, Claim::Token(token))) => Some(*token),
        _ => None,
    }
}

pub(super) fn failed(error: &tokio_postgres::Error) -> LockError {
    LockError::Session(words(error))
}
