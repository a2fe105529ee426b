//! The fencing token: a positive 64-bit integer.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A fencing token, 1 to 2^63-1. A higher token belongs to a later leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Token(NonZeroU64);

/// Reason why a text or number is not a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Empty text.
    #[error("a token is empty; it must be a number from 1 to 9223372036854775807")]
    Empty,
    /// Something other than the digits 0 to 9, including signs and spaces.
    #[error("a token has only the digits 0 to 9, but {found:?} is at position {position}")]
    NotADigit {
        /// The first character that is not a digit.
        found: char,
        /// Its position, counted in characters from 1.
        position: usize,
    },
    /// Zero means "no token".
    #[error("0 is not a token; tokens begin at 1")]
    Zero,
    /// Above 2^63-1.
    #[error("a token is at most 9223372036854775807")]
    TooLarge,
    /// A lease with an invalid time.
    #[error(
        "a lease is written lease, lease:nowait, or lease:15s with whole seconds from 3 to 3600"
    )]
    LeaseTime,
}

impl Token {
    /// The highest token, 2^63-1: the maximum of a PostgreSQL bigint.
    pub const MAX: u64 = i64::MAX as u64;

    /// Checks a number. Errors: zero, or above [`Token::MAX`].
    pub fn new(value: u64) -> Result<Self, TokenError> {
        if value > Self::MAX {
            return Err(TokenError::TooLarge);
        }
        NonZeroU64::new(value).map(Self).ok_or(TokenError::Zero)
    }

    /// The lowest token.
    pub const MIN: Self = Self(NonZeroU64::MIN);

    /// The next token, if any.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        Self::new(self.get() + 1).ok()
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl TryFrom<u64> for Token {
    type Error = TokenError;

    fn try_from(value: u64) -> Result<Self, TokenError> {
        Self::new(value)
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.get()
    }
}

impl FromStr for Token {
    type Err = TokenError;

    /// Reads decimal digits only. Leading zeros are allowed, because fixed-width counters have them.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        if text.is_empty() {
            return Err(TokenError::Empty);
        }
        let mut characters = text.chars().zip(1..);
        if let Some((found, position)) = characters.find(|(c, _)| !c.is_ascii_digit()) {
            return Err(TokenError::NotADigit { found, position });
        }
        // A number of digits only can fail to be read by its size alone.
        Self::new(text.parse().map_err(|_| TokenError::TooLarge)?)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<u64, TokenError>) {
        assert_eq!(text.parse::<Token>().map(Token::get), expect, "{text:?}");
    }

    #[test]
    fn parses_strictly() {
        check("1", Ok(1));
        check("34", Ok(34));
        check("007", Ok(7));
        check("9223372036854775807", Ok(Token::MAX));
        check("9223372036854775808", Err(TokenError::TooLarge));
        check("18446744073709551616", Err(TokenError::TooLarge));
        check(
            "99999999999999999999999999999999999x",
            Err(not_a_digit('x', 36)),
        );
        check("", Err(TokenError::Empty));
        check("0", Err(TokenError::Zero));
        check("-1", Err(not_a_digit('-', 1)));
        check("+1", Err(not_a_digit('+', 1)));
        check(" 1", Err(not_a_digit(' ', 1)));
        check("1 ", Err(not_a_digit(' ', 2)));
        check("1_0", Err(not_a_digit('_', 2)));
        check("1e3", Err(not_a_digit('e', 2)));
        check("\u{0663}", Err(not_a_digit('\u{0663}', 1)));
    }

    fn not_a_digit(found: char, position: usize) -> TokenError {
        TokenError::NotADigit { found, position }
    }
}
