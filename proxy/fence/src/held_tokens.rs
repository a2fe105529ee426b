//! Tokens that the authority has accepted for a session.

use std::fmt;
use std::sync::Arc;

use pgpalisade_authority::{Backend, Claim, Cluster, Mark, Scope, Token};
use pgpalisade_policies::TokenBounds;

use super::mark_cache::CachedMark;
use crate::TokenValue;

/// One accepted token.
#[derive(Debug, Clone)]
pub struct HeldToken {
    /// Cached mark of its scope.
    pub mark: Arc<CachedMark>,
    /// The token.
    pub token: Token,
    /// Timeline of the cluster that the session is on.
    pub timeline: u32,
    /// How it was accepted.
    pub grant: GrantMode,
}

/// Purpose of a declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The session is to write: it is registered, and every session with a lower token is ended first.
    Admit,
    /// Only to see what would be refused. The mark rises, and the session is registered, at its own token if that is
    /// stale; no session is ended. A later takeover by a proxy that enforces the scope ends this one.
    Observe,
    /// Like [`Self::Observe`], for a session that no takeover may end: it is not registered.
    ObserveUnregistered,
}

/// Terms on which one token is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Purpose of its declaration.
    pub purpose: Purpose,
    /// Limits that the policy sets in its scope.
    pub bounds: TokenBounds,
}

/// Server session that the control connection has identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identified {
    /// Its server process.
    pub backend: Backend,
    /// Its cluster and timeline.
    pub cluster: Cluster,
}

/// How a token was accepted for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantMode {
    /// The session is registered, and every session with a lower token was gone.
    Enforced,
    /// Observe mode: no session was ended for it, and it counts no more once its scope is enforced.
    Observed,
}

/// Comparison of a token with the mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenStatus {
    /// The token is not below the mark.
    Current,
    /// The mark is above the token.
    Stale(Mark),
    /// The session is on a primary that a failover has deposed.
    Deposed,
}

impl HeldToken {
    /// Whether the token is not below the mark, and the session on the newest timeline: two atomic loads.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.mark.is_current(self.token) && self.is_on_the_newest_timeline()
    }

    #[inline]
    fn is_on_the_newest_timeline(&self) -> bool {
        self.mark.cluster().timeline() <= self.timeline
    }

    /// Like [`Self::is_current`], with the reason if it is not.
    #[must_use]
    pub fn status(&self) -> TokenStatus {
        match self.mark.mark_above(self.token) {
            Some(mark) => TokenStatus::Stale(mark),
            None if self.is_on_the_newest_timeline() => TokenStatus::Current,
            None => TokenStatus::Deposed,
        }
    }
}

/// Accepted tokens of one value of `fencing.token`.
#[derive(Debug, Clone)]
pub struct HeldTokens {
    tokens: Box<[HeldToken]>,
}

impl HeldTokens {
    /// Tokens that the authority has just accepted for this session.
    #[must_use]
    pub const fn new(tokens: Box<[HeldToken]>) -> Self {
        Self { tokens }
    }

    /// All of them, in the order of the value.
    #[must_use]
    pub const fn tokens(&self) -> &[HeldToken] {
        &self.tokens
    }

    /// Token of a scope.
    #[inline]
    #[must_use]
    pub(crate) fn token(&self, mark: &Arc<CachedMark>) -> Option<&HeldToken> {
        self.tokens
            .iter()
            .find(|held| Arc::ptr_eq(&held.mark, mark))
    }

    /// Token of a scope, by its name: found even if the policy has another cached mark.
    #[must_use]
    pub fn token_of(&self, scope: &Scope) -> Option<&HeldToken> {
        let mut tokens = self.tokens.iter();
        tokens.find(|held| held.mark.scope() == scope)
    }

    /// Value that declares them.
    #[must_use]
    pub fn value(&self) -> TokenValue {
        let tokens = self.tokens.iter();
        TokenValue::of(tokens.map(|held| (held.mark.scope().clone(), held.token)))
    }

    /// Value as a client writes it, with a bare number for `session_scope`.
    #[must_use]
    pub fn text(&self, session_scope: &Scope) -> String {
        match &*self.tokens {
            [only] if only.mark.scope() == session_scope => only.token.to_string(),
            _ => self.to_string(),
        }
    }

    /// First token that is below its mark.
    #[must_use]
    pub fn stale(&self) -> Option<(&HeldToken, Mark)> {
        let mut tokens = self.tokens.iter();
        tokens.find_map(|held| Some((held, held.mark.mark_above(held.token)?)))
    }

    /// Whether these are the tokens of a value. A take is none of them.
    #[must_use]
    pub fn is_for(&self, value: &TokenValue) -> bool {
        let claims = value.claims();
        self.tokens.len() == claims.len()
            && self
                .tokens
                .iter()
                .zip(claims)
                .all(|(token, (scope, claim))| {
                    let held = Claim::Token(token.token);
                    let is_same = token.mark.scope() == scope && held == *claim;
                    is_same && !token.mark.is_retired()
                })
    }
}

impl fmt::Display for HeldTokens {
    /// As `SET fencing.token` takes it: `scheduler=34,billing=7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, HeldToken { mark, token, .. }) in self.tokens.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}={token}", mark.scope())?;
        }
        Ok(())
    }
}
