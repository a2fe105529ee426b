//! Everything that a store holds, to look at.

use crate::{
    Authority, AuthorityError, AuthorityId, Cluster, Mark, Registered, Scope, TakeoverRecord,
};

/// What a store holds. For people and reports: it is old as soon as it is read, and nothing may be admitted by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Which store it is.
    pub identity: AuthorityId,
    /// The cluster on record.
    pub cluster: Option<Cluster>,
    /// Every mark, in no order.
    pub marks: Vec<(Scope, Mark)>,
    /// Every registered session, in no order.
    pub sessions: Vec<(Scope, Registered)>,
    /// The last takeovers, the newest first.
    pub takeovers: Vec<(Scope, TakeoverRecord)>,
}

impl Contents {
    /// Reads an open store, one kind of record after the other. The caller bounds the wait.
    ///
    /// # Errors
    ///
    /// The store's own.
    pub async fn read(authority: &dyn Authority) -> Result<Self, AuthorityError> {
        // Sessions first: the mark that is read after them is never below one of their tokens.
        let sessions = authority.sessions().await?;
        Ok(Self {
            identity: authority.identity(),
            cluster: authority.cluster().await?,
            marks: authority.marks().await?,
            sessions,
            // Without them the rest is worth as much.
            takeovers: authority.takeovers(None).await.unwrap_or_default(),
        })
    }
}
