//! Everything that a store holds, for display.

use crate::{
    Authority, AuthorityError, AuthorityId, Cluster, Mark, Registered, Scope, TakeoverRecord,
};

/// Contents of a store, for people and reports. Outdated once read; must admit nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Identity of the store.
    pub identity: AuthorityId,
    /// The cluster on record.
    pub cluster: Option<Cluster>,
    /// Every mark, unordered.
    pub marks: Vec<(Scope, Mark)>,
    /// Every registered session, unordered.
    pub sessions: Vec<(Scope, Registered)>,
    /// The last takeovers, newest first.
    pub takeovers: Vec<(Scope, TakeoverRecord)>,
}

impl Contents {
    /// Reads an open store, one kind of record after the other. The caller limits the wait.
    ///
    /// # Errors
    ///
    /// Any error of the store.
    pub async fn read(authority: &dyn Authority) -> Result<Self, AuthorityError> {
        // Sessions first: the mark read after them is never below one of their tokens.
        let sessions = authority.sessions().await?;
        Ok(Self {
            identity: authority.identity(),
            cluster: authority.cluster().await?,
            marks: authority.marks().await?,
            sessions,
            // The rest is as useful without them.
            takeovers: authority.takeovers(None).await.unwrap_or_default(),
        })
    }
}
