//! Limits of the policy on tokens and scopes.

use std::fmt;
use std::time::Duration;

/// Limit that a token or scope exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Highest token that is accepted.
    MaxToken(u64),
    /// Highest token that there can be.
    Last,
    /// Most by which one declaration may raise a mark.
    MaxStep(u64),
    /// Most by which all declarations through one proxy may raise it within this time.
    Pace(u64, Duration),
    /// Only issued tokens are accepted.
    Issued,
    /// Most scopes that there may be.
    MaxScopes(u64),
    /// The scope is reserved for the proxies.
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
