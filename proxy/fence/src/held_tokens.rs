//! Tokens that the authority has accepted for a session.

use std::fmt;
use std::sync::Arc;

use pgpalisade_authority::{Backend, Claim, Cluster, Mark, Scope, Token};
use pgpalisade_policies::TokenBounds;

use super::mark_cache::CachedMark;
use crate::token_value::TokenValue;

/// One accepted token.
#[derive(Debug, Clone)]
pub struct HeldToken {
    /// Cached mark of its scope.
    pub cell: Arc<CachedMark>,
    /// The token.
    pub token: Token,
    /// Timeline of the cluster that the session is on.
    pub timeline: u32,
    /// How it was accepted.
    pub footing: GrantMode,
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
        self.cell.is_current(self.token) && self.is_on_the_newest_timeline()
    }

    #[inline]
    fn is_on_the_newest_timeline(&self) -> bool {
        self.cell.cluster().timeline() <= self.timeline
    }

    /// Like [`Self::is_current`], with the reason if it is not.
    #[must_use]
    pub fn standing(&self) -> TokenStatus {
        match self.cell.mark_above(self.token) {
            Some(mark) => TokenStatus::Stale(mark),
            None if self.is_on_the_newest_timeline() => TokenStatus::Current,
            None => TokenStatus::Deposed,
        }
    }
}

/// Accepted tokens of one value of `fencing.token`.
#[derive(Debug, Clone)]
pub struct HeldTokens {
    bindings: Box<[HeldToken]>,
}

impl HeldTokens {
    /// Tokens that the authority has just accepted for this session.
    #[must_use]
    pub const fn new(bindings: Box<[HeldToken]>) -> Self {
        Self { bindings }
    }

    /// All of them, in the order of the value.
    #[must_use]
    pub const fn bindings(&self) -> &[HeldToken] {
        &self.bindings
    }

    /// Token of a scope.
    #[inline]
    #[must_use]
    pub(crate) fn binding(&self, cell: &Arc<CachedMark>) -> Option<&HeldToken> {
        self.bindings
            .iter()
            .find(|binding| Arc::ptr_eq(&binding.cell, cell))
    }

    /// Token of a scope, by its name: found even if the policy has another cached mark.
    #[must_use]
    pub fn binding_of(&self, scope: &Scope) -> Option<&HeldToken> {
        let mut bindings = self.bindings.iter();
        bindings.find(|binding| binding.cell.scope() == scope)
    }

    /// Value that declares them.
    #[must_use]
    pub fn value(&self) -> TokenValue {
        let bindings = self.bindings.iter();
        TokenValue::of(bindings.map(|binding| (binding.cell.scope().clone(), binding.token)))
    }

    /// Value as a client writes it, with a bare number for `session_scope`.
    #[must_use]
    pub fn text(&self, session_scope: &Scope) -> String {
        match &*self.bindings {
            [only] if only.cell.scope() == session_scope => only.token.to_string(),
            _ => self.to_string(),
        }
    }

    /// First token that is below its mark.
    #[must_use]
    pub fn stale(&self) -> Option<(&HeldToken, Mark)> {
        let mut bindings = self.bindings.iter();
        bindings.find_map(|binding| Some((binding, binding.cell.mark_above(binding.token)?)))
    }

    /// Whether these are the tokens of a value. A take is none of them.
    #[must_use]
    pub fn is_for(&self, value: &TokenValue) -> bool {
        let claims = value.claims();
        self.bindings.len() == claims.len()
            && self
                .bindings
                .iter()
                .zip(claims)
                .all(|(binding, (scope, claim))| {
                    let held = Claim::Token(binding.token);
                    let is_same = binding.cell.scope() == scope && held == *claim;
                    is_same && !binding.cell.is_retired()
                })
    }
}

impl fmt::Display for HeldTokens {
    /// As `SET fencing.token` takes it: `scheduler=34,billing=7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, HeldToken { cell, token, .. }) in self.bindings.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}={token}", cell.scope())?;
        }
        Ok(())
    }
}
