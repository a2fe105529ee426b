//! Value of `fencing.token`: `34`, `scheduler=34`, or `scheduler=34,billing=7`. In place of a number, `after:33` and
//! `next` take the token after the mark; `lease` does so once the scope's lease is held.

use std::str::FromStr;

use crate::{Claim, Scope, ScopeError, Token, TokenError};

/// Number of scopes for which a session can hold tokens.
pub const SCOPES_MAX: usize = 64;

/// Well-formed value of `fencing.token` that names at least one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenValue {
    claims: Vec<(Scope, Claim)>,
}

/// Reason why a value of `fencing.token` is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenValueError {
    /// A token is invalid.
    #[error("{0}")]
    Token(#[from] TokenError),
    /// The name of a scope is invalid.
    #[error("{0}")]
    Scope(#[from] ScopeError),
    /// A scope is named twice.
    #[error("scope \"{0}\" is named twice")]
    Twice(Scope),
    /// More than [`SCOPES_MAX`] scopes are named.
    #[error("more than {SCOPES_MAX} scopes are named")]
    TooMany,
    /// The value is not UTF-8.
    #[error("it is not UTF-8")]
    NotUtf8,
}

impl TokenValueError {
    /// Advice on a valid value.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Token(TokenError::NotADigit {
                found: '-',
                position: 1,
            }) => {
                "A token is never negative. Declare the number that the election has issued, from 1 to \
                    9223372036854775807."
            }
            Self::Token(TokenError::Zero) => {
                "Declare the number that the election has issued. If it counts from 0, add 1 to every number."
            }
            Self::Token(TokenError::TooLarge) => {
                "Ids, hashes and times in nanoseconds are not tokens. Declare a number that rises with every leader, \
                    or let pgpalisade count: SET fencing.token = 'lease'."
            }
            Self::Token(TokenError::LeaseTime) => {
                "Write SET fencing.token = 'lease', 'lease:nowait' or 'lease:15s'."
            }
            Self::Token(TokenError::Empty | TokenError::NotADigit { .. }) | Self::NotUtf8 => {
                "Write SET fencing.token = 34, or SET fencing.token = 'scope=34,other=7'. A token is a whole number \
                    from 1 to 9223372036854775807."
            }
            Self::Scope(_) => {
                "Write SET fencing.token = 'scope=34' with the name of a scope: 1 to 200 of the characters A-Z a-z \
                    0-9 _ . : / -."
            }
            Self::Twice(_) => "Name each scope once: SET fencing.token = 'scope=34,other=7'.",
            Self::TooMany => {
                "Declare fewer scopes in one session. Tables that are written together can share a scope of the \
                    policy."
            }
        }
    }
}

impl TokenValue {
    /// Parses a value. A bare number is for `session_scope`. `None` is the empty value: no token.
    ///
    /// # Errors
    ///
    /// [`TokenValueError`] says what is wrong with it.
    pub fn parse(text: &str, session_scope: &Scope) -> Result<Option<Self>, TokenValueError> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        let mut claims: Vec<(Scope, Claim)> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (scope, claim) = match part.split_once('=') {
                Some((scope, claim)) => (Scope::from_str(scope.trim())?, claim.trim()),
                None => (session_scope.clone(), part),
            };
            let claim = Claim::from_str(claim)?;
            if claims.iter().any(|(known, _)| *known == scope) {
                return Err(TokenValueError::Twice(scope));
            }
            if claims.len() == SCOPES_MAX {
                return Err(TokenValueError::TooMany);
            }
            claims.push((scope, claim));
        }
        Ok(Some(Self { claims }))
    }

    /// Value that names these tokens, which come from an earlier value.
    pub fn of(tokens: impl Iterator<Item = (Scope, Token)>) -> Self {
        Self {
            claims: tokens
                .map(|(scope, token)| (scope, Claim::Token(token)))
                .collect(),
        }
    }

    /// Scopes and claims in the order in which they were written, at least one.
    #[must_use]
    pub fn claims(&self) -> &[(Scope, Claim)] {
        &self.claims
    }

    /// Whether it takes the next token in some scope.
    #[must_use]
    pub fn takes(&self) -> bool {
        self.claims.iter().any(|(_, claim)| claim.is_take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &[(&str, u64)]) {
        let expect: Vec<_> = expect
            .iter()
            .map(|(scope, number)| (*scope, number.to_string()))
            .collect();
        let scope = Scope::from_str("own").unwrap();
        let value = TokenValue::parse(text, &scope).unwrap();
        let found: Vec<_> = value
            .iter()
            .flat_map(TokenValue::claims)
            .map(|(scope, claim)| (scope.as_str(), claim.to_string()))
            .collect();
        assert_eq!(found, expect, "{text:?}");
    }

    #[track_caller]
    fn refuse(text: &str) {
        let scope = Scope::from_str("own").unwrap();
        assert!(TokenValue::parse(text, &scope).is_err(), "{text:?}");
    }

    #[test]
    fn values() {
        check("", &[]);
        check("  ", &[]);
        check("34", &[("own", 34)]);
        check("0034", &[("own", 34)]);
        check("9223372036854775807", &[("own", i64::MAX as u64)]);
        check("scheduler=34", &[("scheduler", 34)]);
        check(
            "scheduler=34, billing=7",
            &[("scheduler", 34), ("billing", 7)],
        );
        check("7,billing=8", &[("own", 7), ("billing", 8)]);
    }

    #[test]
    fn the_hint_is_about_the_value() {
        for (text, hint) in [
            ("", "whole number"),
            ("x", "whole number"),
            ("a=", "whole number"),
            ("-3", "never negative"),
            ("3-", "whole number"),
            ("0", "counts from 0"),
            ("9223372036854775808", "Ids, hashes and times"),
            ("lease:1s", "'lease:15s'"),
            ("a b=3", "characters A-Z"),
            ("a=3,a=4", "once"),
        ] {
            let error = TokenValue::parse(&format!("{text},z=1"), &Scope::default()).unwrap_err();
            assert!(error.hint().contains(hint), "{text}: {}", error.hint());
        }
    }

    #[test]
    fn takes() {
        let scope = Scope::from_str("own").unwrap();
        for (text, takes) in [
            ("next", "own=next"),
            ("after:33", "own=after:33"),
            (" after:0 ", "own=after:0"),
            ("scheduler=next", "scheduler=next"),
            ("a/b:c = after:1, 7", "a/b:c=after:1,own=7"),
        ] {
            let value = TokenValue::parse(text, &scope).unwrap().unwrap();
            let shown = value.claims().iter();
            let shown: Vec<_> = shown.map(|(s, claim)| format!("{s}={claim}")).collect();
            assert_eq!((shown.join(",").as_str(), value.takes()), (takes, true));
        }
        for text in ["7", "after:scheduler=1", "next=2"] {
            let value = TokenValue::parse(text, &scope).unwrap().unwrap();
            assert!(!value.takes(), "a scope may have such a name: {text}");
        }
        for text in [
            "after",
            "after:",
            "after:33x",
            "after:33,after:34",
            "next,own=1",
            "next=1=2",
            "=next",
            "next next",
            "NEXT",
        ] {
            refuse(text);
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for text in [
            "0",
            "-1",
            "+1",
            "1e3",
            "0x10",
            "on",
            "3.0",
            "9223372036854775808",
            "99999999999999999999",
        ] {
            refuse(text);
        }
        for text in [
            "=1", "a=", "a=1,", "1,,2", "a=1,a=2", "1,own=2", "a b=1", "a=1=2",
        ] {
            refuse(text);
        }
        let many: Vec<_> = (0..=SCOPES_MAX).map(|at| format!("s{at}=1")).collect();
        refuse(&many.join(","));
    }
}
