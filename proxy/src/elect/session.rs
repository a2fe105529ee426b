//! The way through the proxy, and a session in which a candidate declares.

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
/// PostgreSQL has no such setting, and takes any `fencing.token`:
/// <https://www.postgresql.org/docs/current/runtime-config-custom.html>.
const SHOW_STATUS: &str = "SHOW fencing.status";
/// What a session gets to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// A token that is not above the mark: `docs/errors.md`.
const STALE: &str = "PF001";

/// The way through the proxy, by which the leader writes.
#[derive(Debug, Clone)]
pub(crate) struct Proxied {
    pub(crate) login: Secret<Login>,
    /// What the token is for.
    pub(crate) scope: Scope,
    /// The lock is taken for lost if nothing is heard for so long. Whole seconds.
    pub(crate) ttl: Duration,
}

impl Proxied {
    /// Looks whether it leads to pgpalisade: what writes past it is fenced by nothing. Bounded.
    pub(super) async fn check(&self) -> Result<(), LockError> {
        Session::log_in(self).await?.end().await;
        Ok(())
    }
}

/// A session through the proxy.
pub(super) struct Session {
    pub(super) client: Client,
    /// Ends with the session.
    pub(super) driver: JoinHandle<()>,
    pub(super) end: LastWords,
    /// The proxy.
    at: UpstreamAddr,
    pub(super) scope: Scope,
    answers_within: Duration,
}

/// What has ended a session, in the words of who did: they come with an answer, or instead of one.
#[derive(Debug, Clone, Default)]
pub(super) struct LastWords(Arc<OnceLock<String>>);

impl LastWords {
    /// Other errors end no session, and that it is closed says nothing.
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

/// Why a statement has no answer.
pub(super) enum Unasked {
    /// Others hold the lease, or nobody knows who does.
    NotHad(LockError),
    /// The mark is above the token.
    Stale(LockError),
    /// The server has no such setting.
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

impl Session {
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
            // Whoever waits for an answer learns that there is none when this is dropped: by then it is known why.
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

    /// Has the session declare a token that the proxy finds.
    pub(super) async fn claim(&self, claim: Claim) -> Result<(), Unasked> {
        let claim = format!("SET fencing.token = '{}={claim}'", self.scope);
        self.ask(&claim).await.map(drop)
    }

    /// The token that it holds.
    pub(super) async fn token(&self) -> Result<Token, LockError> {
        let shown = self.ask(SHOW_TOKEN).await?.unwrap_or_default();
        own_token(&shown, &self.scope).ok_or_else(|| {
            LockError::Session(format!(
                "the proxy at {} gave no token: it only observes this scope",
                self.at
            ))
        })
    }

    /// The mark of the scope, as the proxy knows it. Of a session that holds no token.
    pub(super) async fn mark(&self) -> Result<Option<Token>, LockError> {
        let scope = format!("SET fencing.scope = '{}'", self.scope);
        self.ask(&scope).await?;
        let shown = self.ask("SHOW fencing.mark").await?.unwrap_or_default();
        match shown.is_empty() {
            true => Ok(None),
            false => shown.parse().map(Some).map_err(|_| {
                LockError::Session(format!("it shows {shown:?} as the mark of the scope"))
            }),
        }
    }

    /// The first value of the answer, where there is one. A lease is waited for as long as it lives.
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
                Unasked::NotHad(match words.contains(LEASE_IS_ANOTHERS) {
                    true => LockError::Held(words),
                    false => LockError::Session(words),
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

    /// Says goodbye. Bounded.
    pub(super) async fn end(self) {
        let Self { client, driver, .. } = self;
        drop(client);
        let abort = driver.abort_handle();
        // What has ended may have told so before, and is not asked again.
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

/// The token of a scope in what `SHOW fencing.token` shows.
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
