//! Tokens that a session must hold for a statement to pass.

use std::fmt;

use super::ScopeId;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    Free,
    Current(ScopeSet),
    /// Refused, whatever the session holds.
    Refuse(Reason),
}

/// At least one scope, each once, in the order of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeSet {
    One(ScopeId),
    Several(Box<[ScopeId]>),
}

impl ScopeSet {
    #[must_use]
    pub fn as_slice(&self) -> &[ScopeId] {
        match self {
            Self::One(scope) => std::slice::from_ref(scope),
            Self::Several(scopes) => scopes,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason(Box<str>);

impl Reason {
    #[must_use]
    pub(crate) fn new(words: impl Into<Box<str>>) -> Self {
        Self(words.into())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
