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
