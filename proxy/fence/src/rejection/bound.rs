//! Limits of the policy on tokens and scopes.

use std::fmt;
use std::time::Duration;

/// What a token went beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The highest token that is accepted.
    MaxToken(u64),
    /// The highest token that there can be.
    Last,
    /// How far one declaration may raise a mark.
    MaxStep(u64),
    /// The same, by several declarations through one proxy within this time.
    Pace(u64, Duration),
    /// Only those that were given out.
    Issued,
    /// How many scopes there may be.
    MaxScopes(u64),
    /// The scope is the proxies' own.
    Reserved,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MaxToken(most) => write!(f, "max_token is {most}"),
            Self::Last => f.write_str("no token is higher than the mark"),
            Self::MaxStep(most) => write!(f, "max_step is {most}"),
            Self::Pace(most, within) => write!(
                f,
                "max_step allows all declarations through one proxy in {} s together to raise the mark by {most}",
                within.as_secs()
            ),
            Self::Issued => f.write_str("numbers is \"issued\""),
            Self::MaxScopes(most) => write!(f, "max_scopes is {most}"),
            Self::Reserved => f.write_str("the scope is pgpalisade's own"),
        }
    }
}
