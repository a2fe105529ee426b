//! What a declaration asks for: a given token, or the next one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Backend, LeaseTime, Token, TokenError};

const AFTER: &str = "after:";
const NEXT: &str = "next";

/// Token that a declaration asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// This token, from a lock or an election.
    Token(Token),
    /// The token after this mark, if it is still the mark. `None`: the first, if the scope has no mark.
    After(Option<Token>),
    /// The token after the mark, whatever the mark is.
    Next,
    /// As [`Self::Next`]; the caller first acquires the scope's lease ([`crate::Authority::lease`]).
    Lease(LeaseTime),
}

impl Claim {
    /// The token, if it is known without the authority and exists.
    #[must_use]
    pub fn token(self) -> Option<Token> {
        match self {
            Self::Token(token) => Some(token),
            Self::After(None) => Some(Token::MIN),
            Self::After(Some(mark)) => mark.next(),
            Self::Next | Self::Lease(_) => None,
        }
    }

    /// Whether the authority determines the token.
    #[must_use]
    pub const fn is_take(self) -> bool {
        !matches!(self, Self::Token(_))
    }
}

impl From<Token> for Claim {
    fn from(token: Token) -> Self {
        Self::Token(token)
    }
}

impl FromStr for Claim {
    type Err = TokenError;

    /// Accepts only `34`, `after:33`, `next`, `lease`, `lease:15s` and `lease:nowait`. `after:0` is for a scope
    /// without a mark.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        if text == NEXT {
            return Ok(Self::Next);
        }
        if let Some(lease) = LeaseTime::read(text) {
            return lease.map(Self::Lease);
        }
        let Some(mark) = text.strip_prefix(AFTER) else {
            return Token::from_str(text).map(Self::Token);
        };
        match Token::from_str(mark) {
            Ok(mark) => Ok(Self::After(Some(mark))),
            Err(TokenError::Zero) => Ok(Self::After(None)),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(token) => token.fmt(f),
            Self::After(None) => write!(f, "{AFTER}0"),
            Self::After(Some(mark)) => write!(f, "{AFTER}{mark}"),
            Self::Next => f.write_str(NEXT),
            Self::Lease(time) => time.fmt(f),
        }
    }
}

/// Identity of a take, kept with the mark that it raised, to recognize a repeated take whose answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeId {
    pid: i32,
    started_us: i64,
    number: u64,
}

impl TakeId {
    /// The take of a session with this number.
    #[must_use]
    pub const fn new(backend: Backend, number: u64) -> Self {
        Self {
            pid: backend.pid,
            started_us: backend.started_us,
            number,
        }
    }
}

impl fmt::Display for TakeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.pid, self.started_us, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Claim) {
        assert_eq!(text.parse(), Ok(expect), "{text:?}");
    }

    fn token(value: u64) -> Token {
        Token::new(value).unwrap()
    }

    #[test]
    fn claims_are_read_strictly() {
        check("34", Claim::Token(token(34)));
        check("next", Claim::Next);
        check("lease", Claim::Lease(LeaseTime::WhileHeld));
        check("lease:15s", Claim::Lease(LeaseTime::Asked(15)));
        check("after:33", Claim::After(Some(token(33))));
        check("after:033", Claim::After(Some(token(33))));
        check("after:0", Claim::After(None));
        let last = format!("after:{}", Token::MAX);
        check(&last, Claim::After(Some(token(Token::MAX))));
        for text in [
            "",
            "NEXT",
            "next:33",
            "lease:",
            "lease:1s",
            "leases",
            "nextafter:1",
            "after",
            "after:",
            "After:1",
            "after: 1",
            "after:-1",
            "after:+1",
            "after:x",
            "after:next",
            "after:after:1",
            "after:9223372036854775808",
            "before:1",
        ] {
            assert!(text.parse::<Claim>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn claims_are_shown_as_they_are_read() {
        for text in [
            "34",
            "next",
            "after:33",
            "after:0",
            "lease",
            "lease:15s",
            "lease:nowait",
        ] {
            assert_eq!(text.parse::<Claim>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_token_is_the_one_after_the_mark() {
        let known = |text: &str| text.parse::<Claim>().unwrap().token().map(Token::get);
        assert_eq!(known("34"), Some(34));
        assert_eq!(known("after:33"), Some(34));
        assert_eq!(known("after:0"), Some(1));
        assert_eq!(known("next"), None);
        assert_eq!(known("after:9223372036854775807"), None, "none is above it");
    }
}
