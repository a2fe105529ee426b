//! A candidate for a lock, whatever the kind, and its failures.

use std::time::Duration;

use async_trait::async_trait;
use pgpalisade_authority::Token;
use pgpalisade_authority::etcd::EtcdOpenError;
use pgpalisade_tls::ConnectError;

/// Failure of a candidate.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// etcd does not answer, or refuses, or a file for it cannot be read.
    #[error(transparent)]
    Etcd(#[from] EtcdOpenError),
    /// Kubernetes does not answer, or refuses, or a file for it cannot be read.
    #[error("Kubernetes: {0}")]
    Kubernetes(String),
    /// The session that holds the lock, or takes the token, cannot be had.
    #[error("the session through the proxy: {0}")]
    Session(String),
    /// Writes that pass the proxy are not fenced.
    #[error(
        "the server at {0} is not pgpalisade, so it would not fence the command: give the proxy's address to --proxied"
    )]
    NotProxied(String),
    #[error("no answer from the proxy at {0} within {1:?}")]
    Silent(String, Duration),
    #[error("cannot connect to the proxy at {at}: {error}")]
    Connect { at: String, error: ConnectError },
    /// The lease was lost during the campaign.
    #[error("the candidacy was lost: {0}")]
    Lost(String),
    /// Another candidate holds the lock, and this one is not to wait.
    #[error("another leads: {0}")]
    Held(String),
}

/// Behaviour of a candidate while another holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Waits,
    /// Gives up without queueing.
    NoWait,
}

/// A candidate for the lock, or its holder.
#[async_trait(?Send)]
pub(crate) trait Candidate {
    /// Campaigns until this candidate leads, if it is to wait. Returns the token of the new term.
    async fn elected(&mut self, patience: Patience) -> Result<Token, LockError>;

    /// Waits until the lock may be lost, and says why.
    async fn lost(&self) -> String;

    /// Whether it still leads. `false` if the answer comes too late to be sure.
    async fn leads(&self) -> bool;

    /// Releases the lock at once, if the service can be reached. Bounded.
    async fn resign(self: Box<Self>);
}
