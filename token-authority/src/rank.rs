//! Order of marks: by incarnation of the scope, then by token.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Token;

/// Number of repairs of a scope. Everything of a later incarnation is above everything of an earlier one, whatever
/// the tokens.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Incarnation(u32);

impl Incarnation {
    /// Incarnation of a scope that was never repaired.
    pub const FIRST: Self = Self(0);

    /// The incarnation with this stored number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The next incarnation; `None` after 2^32-1 repairs.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Token with the incarnation of its scope. Ranks are totally ordered, and a scope's mark only ever rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// Compared first.
    pub incarnation: Incarnation,
    /// Compared if the incarnations are equal.
    pub token: Token,
}

impl From<Token> for Rank {
    /// The token in a scope that was never repaired.
    fn from(token: Token) -> Self {
        Self {
            incarnation: Incarnation::FIRST,
            token,
        }
    }
}

impl fmt::Display for Rank {
    /// Only the number if the scope was never repaired: `34`, else `34 (incarnation 1)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.incarnation == Incarnation::FIRST {
            return self.token.fmt(f);
        }
        write!(f, "{} (incarnation {})", self.token, self.incarnation)
    }
}

/// No incarnation number is left for the scope.
#[derive(Debug, thiserror::Error)]
#[error("the scope was repaired 4294967295 times and cannot be repaired again")]
pub struct NoIncarnation;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_incarnation_is_above_every_token_of_an_earlier_one() {
        let rank = |incarnation, token| Rank {
            incarnation: Incarnation::new(incarnation),
            token: Token::new(token).unwrap(),
        };
        let rising = [rank(0, 1), rank(0, Token::MAX), rank(1, 1), rank(1, 34)];
        assert!(rising.is_sorted_by(|a, b| a < b));
        assert_eq!(Rank::from(Token::new(7).unwrap()), rank(0, 7));
        assert_eq!(rank(0, 7).to_string(), "7");
        assert_eq!(rank(2, 7).to_string(), "7 (incarnation 2)");
        assert_eq!(Incarnation::new(u32::MAX).next(), None);
    }
}
