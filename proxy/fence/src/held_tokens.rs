//! What a session holds: tokens that the authority has accepted for it.

use std::fmt;
use std::sync::Arc;

use pgpalisade_authority::{Backend, Claim, Cluster, Mark, Scope, Token};
use pgpalisade_policies::TokenBounds;

use super::mark_cache::CachedMark;
use crate::token_value::TokenValue;

/// One accepted token.
#[derive(Debug, Clone)]
pub struct HeldToken {
    /// What this proxy knows of the scope's mark.
    pub cell: Arc<CachedMark>,
    /// The token.
    pub token: Token,
    /// The timeline of the cluster that the session is on.
    pub timeline: u32,
    /// How it was accepted.
    pub footing: GrantMode,
}

/// What a declaration is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The session is to write: it goes on the register, and every session with a lower token is ended first.
    Admit,
    /// Only to see what would be refused: the mark rises and the session goes on the register, at its own token where
    /// that is stale, but nobody is ended.
    /// A later takeover by a proxy that enforces the scope ends the session.
    Observe,
    /// As [`Self::Observe`], of a session that no takeover may end: it stays off the register.
    ObserveUnregistered,
}

/// How one token is to be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// What for.
    pub purpose: Purpose,
    /// What the policy allows in its scope.
    pub bounds: TokenBounds,
}

/// A server session as the control connection has found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identified {
    /// Its server process.
    pub backend: Backend,
    /// The cluster that it is on, and the timeline.
    pub cluster: Cluster,
}

/// How a token was accepted for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantMode {
    /// The session is on the register, and every session with a lower token was gone.
    Enforced,
    /// In observe mode: nobody was ended for it, and nothing may rest on it once its scope is enforced.
    Observed,
}

/// How a token compares with the mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenStatus {
    /// It is the mark.
    Current,
    /// The mark is above it.
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

    /// The same, with what stands against it.
    #[must_use]
    pub fn standing(&self) -> TokenStatus {
        match self.cell.mark_above(self.token) {
            Some(mark) => TokenStatus::Stale(mark),
            None if self.is_on_the_newest_timeline() => TokenStatus::Current,
            None => TokenStatus::Deposed,
        }
    }
}

/// The tokens of one value of `fencing.token`, all accepted.
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

    /// All of them.
    #[must_use]
    pub const fn bindings(&self) -> &[HeldToken] {
        &self.bindings
    }

    /// The one for a scope.
    #[inline]
    #[must_use]
    pub(crate) fn binding(&self, cell: &Arc<CachedMark>) -> Option<&HeldToken> {
        self.bindings
            .iter()
            .find(|binding| Arc::ptr_eq(&binding.cell, cell))
    }

    /// The one for a scope, by its name: also where its cell is not the one that a policy has.
    #[must_use]
    pub fn binding_of(&self, scope: &Scope) -> Option<&HeldToken> {
        let mut bindings = self.bindings.iter();
        bindings.find(|binding| binding.cell.scope() == scope)
    }

    /// The value that they were declared as.
    #[must_use]
    pub fn value(&self) -> TokenValue {
        let bindings = self.bindings.iter();
        TokenValue::of(bindings.map(|binding| (binding.cell.scope().clone(), binding.token)))
    }

    /// The value as a client writes it, for which a bare number is for `session_scope`.
    #[must_use]
    pub fn text(&self, session_scope: &Scope) -> String {
        match &*self.bindings {
            [only] if only.cell.scope() == session_scope => only.token.to_string(),
            _ => self.to_string(),
        }
    }

    /// The first one that is below its mark.
    #[must_use]
    pub fn stale(&self) -> Option<(&HeldToken, Mark)> {
        let mut bindings = self.bindings.iter();
        bindings.find_map(|binding| Some((binding, binding.cell.mark_above(binding.token)?)))
    }

    /// Whether these are the tokens of a value. A take says of none which it is.
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
