//! Leases: which candidate of a scope leads while it renews in time.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::TokenError;

const LEASE: &str = "lease";
const COLON: char = ':';
const NO_WAIT: &str = "nowait";

/// Beginning of the proxy's refusal if another session has the lease. If the store does not answer, the refusal is
/// another.
pub const LEASE_IS_ANOTHERS: &str = "another session holds the lease";

/// Time that a lease lives without renewal, and who renews it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseTime {
    /// The proxy renews, while the session holds the token.
    WhileHeld,
    /// The client renews, by asking again within this many seconds.
    Asked(u16),
    /// As [`Self::WhileHeld`], without waiting while another holds the lease.
    NoWait,
}

impl LeaseTime {
    /// Seconds that a client may ask for. With less, etcd may take longer to notice that it lost a member.
    pub(crate) const SECONDS: RangeInclusive<u16> = 3..=3600;
    /// Time of a lease that the proxy renews. A successor waits this long if the proxy's machine vanished.
    pub const WHILE_HELD: Duration = Duration::from_secs(15);

    /// Time to request from the store.
    #[must_use]
    pub fn duration(self) -> Duration {
        match self {
            Self::WhileHeld | Self::NoWait => Self::WHILE_HELD,
            Self::Asked(seconds) => Duration::from_secs(seconds.into()),
        }
    }

    /// How long the client waits for the lease.
    #[must_use]
    pub fn patience(self) -> Duration {
        match self {
            Self::WhileHeld | Self::Asked(_) => self.duration(),
            Self::NoWait => Duration::ZERO,
        }
    }

    /// Reads `lease`, `lease:15s` or `lease:nowait`; `None` for another word.
    pub(crate) fn read(text: &str) -> Option<Result<Self, TokenError>> {
        let time = text.strip_prefix(LEASE)?;
        if time.is_empty() {
            return Some(Ok(Self::WhileHeld));
        }
        let time = time.strip_prefix(COLON)?;
        if time == NO_WAIT {
            return Some(Ok(Self::NoWait));
        }
        let seconds = time.strip_suffix('s');
        let digits = seconds.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let seconds = digits.and_then(|digits| u16::from_str(digits).ok());
        let seconds = seconds.filter(|seconds| Self::SECONDS.contains(seconds));
        Some(seconds.map(Self::Asked).ok_or(TokenError::LeaseTime))
    }
}

impl fmt::Display for LeaseTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WhileHeld => f.write_str(LEASE),
            Self::Asked(seconds) => write!(f, "{LEASE}{COLON}{seconds}s"),
            Self::NoWait => write!(f, "{LEASE}{COLON}{NO_WAIT}"),
        }
    }
}

/// Candidacy for a lease: random, and new for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseId(u128);

impl LeaseId {
    /// A new candidacy.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Step with a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseStep {
    /// Acquires a free lease, or renews one's own.
    Acquire(Duration),
    /// Renews a lease that the candidate holds.
    Renew(Duration),
    /// Releases a lease that the candidate holds.
    Release,
}

impl LeaseStep {
    /// Time to live from this step on.
    pub(crate) const fn time(self) -> Option<Duration> {
        match self {
            Self::Acquire(time) | Self::Renew(time) => Some(time),
            Self::Release => None,
        }
    }
}

/// Answer to [`crate::Authority::lease`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leased {
    /// The candidate holds the lease, for its whole time from the step on.
    Held,
    /// The candidate does not hold the lease.
    NotHeld,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_strictly() {
        let read = |text: &str| LeaseTime::read(text);
        assert_eq!(read("lease"), Some(Ok(LeaseTime::WhileHeld)));
        assert_eq!(read("lease:nowait"), Some(Ok(LeaseTime::NoWait)));
        for seconds in [3, 15, 3600] {
            let text = format!("lease:{seconds}s");
            let time = LeaseTime::Asked(seconds);
            assert_eq!(read(&text), Some(Ok(time)));
            assert_eq!(time.to_string(), text);
        }
        for text in [
            "lease:",
            "lease:15",
            "lease:2s",
            "lease:3601s",
            "lease:+15s",
            "lease:65551s",
            "lease: 15s",
            "lease:no",
            "lease:nowaits",
        ] {
            assert_eq!(read(text), Some(Err(TokenError::LeaseTime)), "{text}");
        }
        for text in ["leases", "Lease", "", "34", "release"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
