//! A candidate for a lock, whatever the kind, and its failures.

use async_trait::async_trait;
use pgpalisade_authority::{OpenError, Token};

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(transparent)]
    Etcd(#[from] OpenError),
    #[error("{0}")]
    Failed(String),
    /// The lease was lost before this candidate led.
    #[error("the candidacy was lost: {0}")]
    Lost(String),
    /// Another candidate holds the lock, and this one does not wait.
    #[error("another leads: {0}")]
    Held(String),
}

/// A candidate for the lock, or its holder.
#[async_trait(?Send)]
pub(crate) trait Candidate {
    /// Campaigns until this candidate leads, or until another does, if it does not wait. Returns the token of the new
    /// term.
    async fn elected(&mut self, waits: bool) -> Result<Token, LockError>;

    /// Waits until the lock may be lost, and says why.
    async fn lost(&self) -> String;

    /// Whether it still leads; `false` if the answer comes too late to be sure.
    async fn leads(&self) -> bool;

    /// Releases the lock at once, if the service can be reached. Bounded.
    async fn resign(self: Box<Self>);
}
