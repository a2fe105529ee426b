//! Sessions through the proxy in which a candidate declares.

use std::time::Duration;

use pgpalisade_authority::{Claim, LEASE_IS_ANOTHERS, Scope, Token, TokenValue};
use pgpalisade_tls::{ClientSession, Login, Said, Secret, words};
use tokio_postgres::error::{Severity, SqlState};

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
    proxied: Proxied,
}

#[derive(Debug, thiserror::Error)]
#[error("the session through the proxy: {0}")]
pub(crate) struct Unasked(Said);

impl Unasked {
    /// The mark is above the token.
    pub(crate) fn is_stale(&self) -> bool {
        self.has(&SqlState::from_code(STALE))
    }

    pub(crate) fn has_no_lease(&self) -> bool {
        self.has(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// Whether it has this code, and the session goes on.
    fn has(&self, code: &SqlState) -> bool {
        let error = self.0.error.as_ref();
        error.is_some_and(|error| {
            error.code() == code && error.parsed_severity() != Some(Severity::Fatal)
        })
    }
}

impl From<Unasked> for LockError {
    fn from(unasked: Unasked) -> Self {
        if unasked.has_no_lease() && unasked.0.words.contains(LEASE_IS_ANOTHERS) {
            Self::Held(unasked.0.words)
        } else {
            Self::Failed(unasked.to_string())
        }
    }
}

impl ProxySession {
    /// Logs in, at pgpalisade only. Bounded.
    pub(crate) async fn log_in(proxied: &Proxied) -> Result<Self, LockError> {
        let at = &proxied.address;
        let opened = proxied.login.expose().open_within(proxied.ttl).await;
        let session = Self {
            session: opened.map_err(|said| {
                LockError::Failed(format!("cannot connect to the proxy at {at}: {said}"))
            })?,
            proxied: proxied.clone(),
        };
        match session.ask(SHOW_STATUS).await {
            Ok(_) => Ok(session),
            Err(unasked) => {
                session.end().await;
                Err(if unasked.has(&SqlState::UNDEFINED_OBJECT) {
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
        let rows = self.session.ask(sql, self.proxied.ttl * 2).await;
        let rows = rows.map_err(Unasked)?;
        Ok(rows.into_iter().flatten().next())
    }

    /// The error that ended the session, received with an answer or without one.
    pub(crate) fn last_words(&self) -> Option<String> {
        self.session.last_error().map(words)
    }

    /// Waits until the session has ended.
    pub(crate) async fn ended(&self) {
        self.session.ended().await;
    }

    pub(crate) async fn end(self) {
        self.session.end(GOODBYE).await;
    }
}
