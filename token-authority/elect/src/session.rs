//! Sessions through the proxy in which a candidate declares.

use std::sync::OnceLock;
use std::time::Duration;

use pgpalisade_authority::{Claim, LEASE_IS_ANOTHERS, Scope, Token, TokenValue};
use pgpalisade_tls::{ClientSession, Login, Secret, words};
use tokio::time::timeout;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::candidate::LockError;

/// PostgreSQL lacks this setting, but accepts any `fencing.token`:
/// <https://www.postgresql.org/docs/current/runtime-config-custom.html>.
const SHOW_STATUS: &str = "SHOW fencing.status";
const GOODBYE: Duration = Duration::from_secs(1);
/// A token that is not above the mark: `docs/errors.md`.
const STALE: &str = "PF001";

/// The login through the proxy, which the leader's writes use too.
#[derive(Debug, Clone)]
pub struct Proxied {
    pub login: Secret<Login>,
    pub address: String,
    /// The scope of the leader's tokens.
    pub scope: Scope,
    /// The lock counts as lost after this time without an answer. Whole seconds.
    pub ttl: Duration,
}

impl Proxied {
    /// Checks that the login leads to pgpalisade. Bounded.
    pub(crate) async fn check(&self) -> Result<(), LockError> {
        ProxySession::log_in(self).await?.end().await;
        Ok(())
    }
}

pub(crate) struct ProxySession {
    session: ClientSession,
    /// The server's error that ended the session.
    last_words: OnceLock<String>,
    proxied: Proxied,
}

#[derive(Debug, thiserror::Error)]
#[error("the session through the proxy: {words}")]
pub(crate) struct Unasked {
    code: Option<SqlState>,
    words: String,
}

impl Unasked {
    /// The mark is above the token.
    pub(crate) fn is_stale(&self) -> bool {
        self.code.as_ref().is_some_and(|code| code.code() == STALE)
    }

    pub(crate) fn has_no_lease(&self) -> bool {
        self.code == Some(SqlState::LOCK_NOT_AVAILABLE)
    }
}

impl From<Unasked> for LockError {
    fn from(unasked: Unasked) -> Self {
        if unasked.has_no_lease() && unasked.words.contains(LEASE_IS_ANOTHERS) {
            Self::Held(unasked.words)
        } else {
            Self::Failed(unasked.to_string())
        }
    }
}

impl ProxySession {
    /// Logs in, at pgpalisade only. Bounded.
    pub(crate) async fn log_in(proxied: &Proxied) -> Result<Self, LockError> {
        let at = &proxied.address;
        let opened = timeout(proxied.ttl, proxied.login.expose().open()).await;
        let opened = opened.map_err(|_| LockError::Failed(silent(at, proxied.ttl)))?;
        let session = Self {
            session: opened.map_err(|error| {
                LockError::Failed(format!("cannot connect to the proxy at {at}: {error}"))
            })?,
            last_words: OnceLock::new(),
            proxied: proxied.clone(),
        };
        match session.ask(SHOW_STATUS).await {
            Ok(_) => Ok(session),
            Err(unasked) => {
                session.end().await;
                Err(if unasked.code == Some(SqlState::UNDEFINED_OBJECT) {
                    LockError::Failed(format!(
                        "the server at {at} is not pgpalisade, so it would not fence the command: give the proxy's \
                         address to --proxied"
                    ))
                } else {
                    unasked.into()
                })
            }
        }
    }

    /// Declares a token that the proxy chooses.
    pub(crate) async fn claim(&self, claim: Claim) -> Result<(), Unasked> {
        let claim = format!("SET fencing.token = '{}={claim}'", self.proxied.scope);
        self.ask(&claim).await.map(drop)
    }

    /// The token that the session holds in its scope, if any.
    pub(crate) async fn own_token(&self) -> Result<Option<Token>, Unasked> {
        let shown = self.ask("SHOW fencing.token").await?.unwrap_or_default();
        let scope = &self.proxied.scope;
        let value = TokenValue::parse(&shown, scope).ok().flatten();
        let claims = value.as_ref().map_or(&[][..], TokenValue::claims);
        Ok(match claims.iter().find(|(named, _)| named == scope) {
            Some((_, Claim::Token(token))) => Some(*token),
            _ => None,
        })
    }

    /// The token of a claim that was accepted.
    pub(crate) async fn token(&self) -> Result<Token, LockError> {
        self.own_token().await?.ok_or_else(|| {
            LockError::Failed(format!(
                "the proxy at {} gave no token: it only observes this scope",
                self.proxied.address
            ))
        })
    }

    /// The mark of the scope, as the proxy knows it, in a session without a token.
    pub(crate) async fn mark(&self) -> Result<Option<Token>, LockError> {
        let scope = format!("SET fencing.scope = '{}'", self.proxied.scope);
        self.ask(&scope).await?;
        let shown = self.ask("SHOW fencing.mark").await?.unwrap_or_default();
        if shown.is_empty() {
            return Ok(None);
        }
        let mark = shown.parse().map(Some);
        let strange = format!("the proxy shows {shown:?} as the mark of the scope");
        mark.map_err(|_| LockError::Failed(strange))
    }

    /// The first value of the answer, if any. Bounded by twice the TTL: a lease is waited for as long as it lives.
    pub(crate) async fn ask(&self, sql: &str) -> Result<Option<String>, Unasked> {
        let within = self.proxied.ttl * 2;
        let answer = timeout(within, self.session.client.simple_query(sql)).await;
        let answer = answer.map_err(|_| Unasked {
            code: None,
            words: silent(&self.proxied.address, within),
        })?;
        let rows = answer.map_err(|error| {
            if let Some(words) = last_words(&error) {
                let _first = self.last_words.set(words);
            }
            let said = self.last_words().filter(|_| error.is_closed());
            Unasked {
                code: error.code().cloned(),
                words: said.unwrap_or_else(|| words(&error)),
            }
        })?;
        Ok(rows.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }))
    }

    /// The error that ended the session, received with an answer or without one.
    pub(crate) fn last_words(&self) -> Option<String> {
        let unasked = || self.session.last_error().and_then(last_words);
        self.last_words.get().cloned().or_else(unasked)
    }

    /// Waits until the session has ended.
    pub(crate) async fn ended(&self) {
        self.session.ended().await;
    }

    pub(crate) async fn end(self) {
        self.session.end(GOODBYE).await;
    }
}

fn silent(at: &str, within: Duration) -> String {
    format!("no answer from the proxy at {at} within {within:?}")
}

/// The error that ended a session, except the bare report that it is closed.
fn last_words(error: &tokio_postgres::Error) -> Option<String> {
    let severity = error.as_db_error().map(DbError::parsed_severity);
    let ends = severity.is_none_or(|severity| severity == Some(Severity::Fatal));
    (ends && !error.is_closed()).then(|| words(error))
}
