//! An election that others hold, and that a replica's proxy follows.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::Token;

/// The time in which a replica leads without a break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mandate {
    /// Tells it from every other of the same election.
    pub id: String,
    /// Fencing token of the leader, if the election has numbers.
    pub number: Option<Token>,
}

/// What an election says of a replica.
#[derive(Debug)]
pub enum Standing {
    /// It leads.
    Leads {
        /// What it leads by.
        mandate: Mandate,
        /// Time until which this is certain without another read.
        sure_until: Instant,
    },
    /// It does not lead. Says why, for people.
    Waits(String),
}

/// A replica's view of an election.
#[async_trait]
pub trait Election: fmt::Debug + Send + Sync {
    /// Time between two reads.
    fn look_every(&self) -> Duration;

    /// Reads whether the replica leads. Bounded.
    ///
    /// Errors: why it could not be read. The last answer then holds until its time is over.
    async fn read(&self) -> Result<Standing, String>;
}

/// Whether the leader's name in an election is that of a replica: its identity, with or without what many programs
/// append to it after `_`, as client-go's examples and controller-runtime do.
#[must_use]
pub fn is_named(leader: &str, identity: &str) -> bool {
    let rest = leader.strip_prefix(identity);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

#[cfg(test)]
mod tests {
    use super::is_named;

    #[test]
    fn a_leader_is_named_by_its_replica_and_its_process() {
        for (leader, expect) in [
            ("app-0", true),
            ("app-0_5cbd", true),
            ("app-0_", true),
            ("app-01", false),
            ("app-0.b", false),
            ("app", false),
            ("b_app-0", false),
            ("", false),
        ] {
            assert_eq!(is_named(leader, "app-0"), expect, "{leader}");
        }
    }
}
