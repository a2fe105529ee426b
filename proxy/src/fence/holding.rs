//! What a session holds: tokens that the authority has accepted for it.

use std::fmt;
use std::sync::Arc;

use pgpalisade_authority::{Mark, Token};

use super::scope_cell::ScopeCell;
use super::token_value::TokenValue;

/// One accepted token.
#[derive(Debug, Clone)]
pub struct Binding {
    /// What this proxy knows of the scope's mark.
    pub cell: Arc<ScopeCell>,
    /// The token.
    pub token: Token,
    /// The timeline of the cluster that the session is on.
    pub timeline: u32,
}

/// How a token compares with the mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is the mark.
    Current,
    /// The mark is above it.
    Stale(Mark),
    /// The session is on a primary that a failover has deposed.
    Deposed,
}

impl Binding {
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
    pub fn standing(&self) -> Standing {
        match self.cell.mark_above(self.token) {
            Some(mark) => Standing::Stale(mark),
            None if self.is_on_the_newest_timeline() => Standing::Current,
            None => Standing::Deposed,
        }
    }
}

/// The tokens of one value of `fencing.token`, all accepted.
#[derive(Debug, Clone)]
pub struct Holding {
    bindings: Box<[Binding]>,
}

impl Holding {
    /// Tokens that the authority has just accepted for this session.
    #[must_use]
    pub const fn new(bindings: Box<[Binding]>) -> Self {
        Self { bindings }
    }

    /// All of them.
    #[must_use]
    pub const fn bindings(&self) -> &[Binding] {
        &self.bindings
    }

    /// The one for a scope.
    #[inline]
    #[must_use]
    pub fn binding(&self, cell: &Arc<ScopeCell>) -> Option<&Binding> {
        self.bindings
            .iter()
            .find(|binding| Arc::ptr_eq(&binding.cell, cell))
    }

    /// Whether a write that needs the token of `cell`'s scope may pass: two atomic loads for each token.
    /// A session that is stale in any of its scopes may not write at all.
    #[inline]
    #[must_use]
    pub fn admits_write(&self, cell: &Arc<ScopeCell>) -> bool {
        self.binding(cell).is_some() && self.bindings.iter().all(Binding::is_current)
    }

    /// The first one that is below its mark.
    #[must_use]
    pub fn stale(&self) -> Option<(&Binding, Mark)> {
        self.bindings
            .iter()
            .find_map(|binding| match binding.standing() {
                Standing::Current | Standing::Deposed => None,
                Standing::Stale(mark) => Some((binding, mark)),
            })
    }

    /// The first one whose session is on a deposed primary.
    #[must_use]
    pub fn deposed(&self) -> Option<&Binding> {
        let mut bindings = self.bindings.iter();
        bindings.find(|binding| binding.standing() == Standing::Deposed)
    }

    /// Whether these are the tokens of a value.
    #[must_use]
    pub fn is_for(&self, value: &TokenValue) -> bool {
        let tokens = value.tokens();
        self.bindings.len() == tokens.len()
            && self
                .bindings
                .iter()
                .zip(tokens)
                .all(|(binding, (scope, token))| {
                    let is_same = binding.cell.scope() == scope && binding.token == *token;
                    is_same && !binding.cell.is_retired()
                })
    }
}

impl fmt::Display for Holding {
    /// As `SET fencing.token` takes it: `scheduler=34,billing=7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Binding { cell, token, .. }) in self.bindings.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}={token}", cell.scope())?;
        }
        Ok(())
    }
}
