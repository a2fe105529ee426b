//! Name of a leadership.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;

/// Name of a leadership, for example `scheduler`. Tokens are compared only within a scope. Cheap to clone.
///
/// 1 to 200 bytes of `A-Z a-z 0-9 _ . : / -`, compared byte by byte.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Scope(Arc<str>);

const EPOCH: &str = "pgpalisade.epoch";

/// Reason why a text is not a scope's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// Empty text.
    #[error("the name of a scope is empty")]
    Empty,
    /// Longer than [`Scope::MAX_BYTES`].
    #[error("the name of a scope has {0} bytes, more than the {max} allowed", max = Scope::MAX_BYTES)]
    TooLong(usize),
    /// A character outside the allowed set.
    #[error("the name of a scope may not contain {0:?}; allowed are A-Z a-z 0-9 _ . : / -")]
    Character(char),
}

impl Scope {
    /// Maximum length of a name, in bytes.
    pub const MAX_BYTES: usize = 200;

    /// Checks a name. Errors: empty, too long, or a character that is not allowed.
    pub fn new(name: &str) -> Result<Self, ScopeError> {
        if name.is_empty() {
            return Err(ScopeError::Empty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(ScopeError::TooLong(name.len()));
        }
        match name
            .chars()
            .find(|c| !c.is_ascii_alphanumeric() && !"_.:/-".contains(*c))
        {
            Some(bad) => Err(ScopeError::Character(bad)),
            None => Ok(Self(name.into())),
        }
    }

    /// Scope for the proxies' own use: its mark counts up. A store whose mark is lower than the cluster has seen is
    /// an old copy.
    #[must_use]
    pub fn epoch() -> Self {
        Self(EPOCH.into())
    }

    /// Whether it is [`Self::epoch`].
    #[must_use]
    pub fn is_epoch(&self) -> bool {
        self.as_str() == EPOCH
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Scope {
    /// The scope of a token without one: `default`.
    fn default() -> Self {
        Self("default".into())
    }
}

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(name: &str) -> Result<Self, ScopeError> {
        Self::new(name)
    }
}

impl TryFrom<String> for Scope {
    type Error = ScopeError;

    fn try_from(name: String) -> Result<Self, ScopeError> {
        Self::new(&name)
    }
}

impl Borrow<str> for Scope {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, expect: Result<(), ScopeError>) {
        assert_eq!(Scope::new(name).map(|_| ()), expect, "{name:?}");
    }

    #[test]
    fn names() {
        check("default", Ok(()));
        check("A-z_0.9:/x", Ok(()));
        check("", Err(ScopeError::Empty));
        check(&"a".repeat(200), Ok(()));
        check(&"a".repeat(201), Err(ScopeError::TooLong(201)));
        check("a b", Err(ScopeError::Character(' ')));
        check("a=1", Err(ScopeError::Character('=')));
        check("a\0", Err(ScopeError::Character('\0')));
        check("\u{e9}", Err(ScopeError::Character('\u{e9}')));
    }
}
