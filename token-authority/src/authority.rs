//! Contract of a store of marks.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};

use crate::{
    Backend, Claim, Cluster, LeaseId, LeaseStep, Leased, Mark, NoIncarnation, Rank, Registered,
    RepairRequest, Repaired, Scope, TakeId, TakeoverRecord, Token,
};

/// Answer of an authority.
pub type Answer<T> = Result<T, AuthorityError>;

/// Durable, linearizable store of marks and of the sessions registered for them.
///
/// Every method is one atomic step, durable before it answers, and can be repeated. If its future is dropped or it
/// fails, the step may or may not have been taken. The caller limits the wait.
#[async_trait]
pub trait Authority: Send + Sync + 'static {
    /// Identity of this store: random, made with the store, the same for all who share it.
    fn identity(&self) -> AuthorityId;

    /// Records the cluster of the marks, and the latest point of its history.
    ///
    /// Accepted if none is recorded, or the same cluster on an older timeline, or on the same timeline with a server
    /// start that is not later. So a primary that a failover deposed is refused once its successor is recorded, and a
    /// server once a copy of its storage was started, until it restarts.
    async fn enrol(&self, cluster: Cluster) -> Answer<Enrolled>;

    /// Registers a session for a token.
    ///
    /// - no cluster recorded, or another cluster, timeline or start than the declaration's: nothing changes,
    ///   [`Declared::OtherCluster`];
    /// - mark above the token: [`Declared::Stale`], and what [`IfStale`] says;
    /// - mark equal: the session is registered, [`DeclareOutcome::Current`];
    /// - mark below by more than the declaration allows: nothing changes, [`Declared::TooFar`];
    /// - mark below, or none: the mark rises and the session is registered, [`DeclareOutcome::Raised`].
    ///
    /// A take gets the token after the mark. One that names another mark changes nothing: [`Declared::Stale`] if the
    /// mark is above the named one, [`Declared::MarkIsLower`] if below. A take whose [`TakeId`] has already raised the
    /// mark is [`DeclareOutcome::Current`].
    ///
    /// If the declaration names an election, the token must be the number of its leader in this very step, else
    /// nothing changes: [`Declared::NotElected`]. A store without elections accepts no such declaration.
    ///
    /// The token belongs to the scope's present incarnation. A session registered in the scope at a lower rank moves
    /// up, and is not in its own `lower`. It never moves down.
    async fn declare(&self, declaration: &Declaration) -> Answer<Declared>;

    /// Lists every registered session, for the reaper.
    async fn sessions(&self) -> Answer<Vec<(Scope, Registered)>>;

    /// Lists every mark, to fill caches at start. Marks are never deleted.
    async fn marks(&self) -> Answer<Vec<(Scope, Mark)>>;

    /// The mark of one scope.
    async fn mark(&self, scope: &Scope) -> Answer<Option<Mark>>;

    /// Reports that these sessions are gone from PostgreSQL. Removes only their records of a lower rank in the scope.
    /// Marks the scope as drained if no lower record is left and the rank is still the mark's.
    async fn drained(&self, scope: &Scope, rank: Rank, gone: &[Backend]) -> Answer<Drained>;

    /// Removes all records of ended sessions, in every scope. Unknown sessions are no error.
    ///
    /// No other session has their process id and start, so the report may come late or repeatedly.
    async fn forget(&self, gone: &[Backend]) -> Answer<()>;

    /// Sets the mark of a scope, down or up, in the scope's next incarnation; for an operator. All earlier
    /// registrations are below the new mark. No other step lowers a mark's token; the rank rises here too.
    ///
    /// A repeated request with the same record changes nothing and gets the same answer, with the sessions that are
    /// left.
    async fn repair(&self, request: &RepairRequest) -> Answer<Repaired>;

    /// The recorded cluster.
    async fn cluster(&self) -> Answer<Option<Cluster>>;

    /// Acquires, renews or releases the lease of a scope. One candidate at most holds it, and loses it unless it
    /// renews in time. The store counts from this step by its own clock, so a holder that counts from before its
    /// request steps down first. A lapsed lease can be renewed until another candidate acquires it.
    ///
    /// Decides nothing about writes: the token fences a holder that sleeps.
    async fn lease(&self, scope: &Scope, holder: LeaseId, step: LeaseStep) -> Answer<Leased>;

    /// Records how takeovers of a scope went; keeps the last [`TakeoverRecord::KEPT`]. Attempts at one takeover share
    /// one record. For people; no decision depends on it.
    async fn note_takeovers(&self, scope: &Scope, records: &[TakeoverRecord]) -> Answer<()>;

    /// Lists the takeovers of one scope or of all, newest first, at most [`TakeoverRecord::LISTED`]. For all scopes,
    /// reads those with the latest records; the last takeover of each is in the list.
    async fn takeovers(&self, of: Option<&Scope>) -> Answer<Vec<(Scope, TakeoverRecord)>>;

    /// Reports changes in the store from now on, through any proxy. Ends when the store is closed.
    ///
    /// For speed, never for safety: reports may be late, repeated, or skip what was overtaken. Changes during an
    /// outage of the store are reported after it.
    fn watch(&self) -> Watch;

    /// Follows the leader of an election in this store; `None`: the store holds no elections. Needs a runtime. Ends
    /// with the receiver, or when the store accepts nothing more.
    ///
    /// For speed, never for safety: the leader may have changed already.
    fn follow(&self, _election: &str) -> Option<Following> {
        None
    }

    /// Records the cluster, and raises marks to these if they are missing or lower in rank; for an operator, when no
    /// proxy serves. A scope whose mark rises is not drained.
    ///
    /// `seen` is what was on record when the operator decided. If another cluster is recorded by now, nothing
    /// changes.
    async fn recover(
        &self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Answer<Enrolled>;
}

/// Changes of a store. Must be read continuously: a store may leave out what does not fit.
pub type Watch = mpsc::Receiver<Change>;

/// Number of an election's leader; `None` if there is no leader, or it is not known yet.
pub type Following = watch::Receiver<Option<Token>>;

/// Change in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A mark rose in rank: a higher token, or a repair.
    Mark(Scope, Mark),
    /// Another cluster, or a newer timeline or start, was recorded.
    Cluster(Cluster),
}

/// Answer to [`Authority::enrol`] and [`Authority::recover`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Enrolled {
    /// The cluster is on record.
    Accepted,
    /// Another one is recorded. Nothing changed.
    Refused {
        /// Another cluster, or the same one on a newer timeline or with a later start.
        recorded: Cluster,
    },
}

/// Declaration of a token by a session.
#[derive(Debug, Clone)]
pub struct Declaration {
    /// The scope.
    pub scope: Scope,
    /// The token, or how the store determines it.
    pub claim: Claim,
    /// Identity of a take. A take without one cannot be repeated.
    pub take: Option<TakeId>,
    /// The session.
    pub backend: Backend,
    /// Cluster of the session, as enrolled.
    pub cluster: Cluster,
    /// Who declares, for people; kept with the mark, cut at 200 bytes.
    pub by: String,
    /// The largest distance above an existing mark. `None`: no limit.
    pub max_step: Option<u64>,
    /// The highest token that a take may reach in a scope with a mark.
    pub max_token: Option<u64>,
    /// What happens to the session if the token is below the mark.
    pub if_stale: IfStale,
    /// The token must also be the number of this election's leader.
    pub election: Option<Arc<str>>,
}

impl Declaration {
    /// A declaration without limits, refused if the token is below the mark.
    pub fn new(
        scope: &Scope,
        claim: impl Into<Claim>,
        backend: Backend,
        cluster: Cluster,
        by: &str,
    ) -> Self {
        Self {
            scope: scope.clone(),
            claim: claim.into(),
            take: None,
            backend,
            cluster,
            by: by.to_owned(),
            max_step: None,
            max_token: None,
            if_stale: IfStale::Refuse,
            election: None,
        }
    }

    /// Refuses an election, for a store without elections.
    pub(crate) fn names_no_election(&self) -> Answer<()> {
        match &self.election {
            None => Ok(()),
            Some(election) => Err(AuthorityError::Unavailable(format!(
                "this store holds no elections, so the leader of {election:?} cannot be determined"
            ))),
        }
    }

    /// Token for the registration of a stale session. A refused take has none.
    pub(crate) const fn stale_token(&self) -> Option<Token> {
        match (self.if_stale, self.claim) {
            (IfStale::Register, Claim::Token(token)) => Some(token),
            _ => None,
        }
    }
}

/// What happens to a session that declares a token below the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfStale {
    /// Nothing changes.
    Refuse,
    /// The session continues, because its refusal is only observed. It is registered at its own rank and the scope is
    /// no longer drained, so the next takeover ends it. The mark stays.
    Register,
}

/// Answer to a declaration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "verdict")]
pub enum Declared {
    /// The token is below the mark, or the mark is above the one that a take names. The mark did not change.
    #[serde(rename = "stale")]
    Stale {
        /// The higher mark.
        mark: Mark,
    },
    /// The token is further above the mark than the declaration allows. Nothing changed.
    #[serde(rename = "far")]
    TooFar {
        /// The lower mark.
        mark: Mark,
    },
    /// The mark is below the one that a take names, or missing. Nothing changed.
    #[serde(rename = "lower")]
    MarkIsLower {
        /// The mark, if any.
        mark: Option<Mark>,
    },
    /// The token is not below the mark, but not the number of the election's leader. Nothing changed.
    #[serde(skip)]
    NotElected {
        /// Number of the leader, if any.
        leader: Option<Token>,
        /// The mark, if any.
        mark: Option<Mark>,
    },
    /// No cluster is recorded, or another cluster, timeline or start. Nothing changed.
    #[serde(rename = "other")]
    OtherCluster {
        /// What is on record.
        recorded: Option<Cluster>,
    },
    /// The session is registered. It may write once no session of `lower` is left.
    #[serde(rename = "accepted")]
    Accepted {
        /// The mark, with the declared token.
        mark: Mark,
        /// Whether this declaration raised it.
        outcome: DeclareOutcome,
        /// Every registered session of the scope with a lower rank, in the order of [`Backend`]. Empty once the scope
        /// was drained for this rank.
        lower: Vec<Registered>,
    },
}

/// Effect of an accepted declaration on the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeclareOutcome {
    /// The mark rose: a takeover.
    Raised,
    /// The mark was already there; this very take may have raised it before.
    Current,
}

/// Answer to [`Authority::drained`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drained {
    /// No lower session is registered. If the rank is still the mark's, the scope is recorded as drained.
    Complete,
    /// These sessions are still registered with a lower rank. The scope is not drained.
    Left(Vec<Registered>),
}

impl Drained {
    pub(crate) fn of(left: Vec<Registered>) -> Self {
        if left.is_empty() {
            Self::Complete
        } else {
            Self::Left(left)
        }
    }
}

/// Identity of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AuthorityId(u128);

impl AuthorityId {
    pub(crate) fn random() -> Self {
        Self(rand::random())
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// First 32 bits, for the object of the advisory lock by which proxies detect each other.
    pub fn short(self) -> u32 {
        let [a, b, c, d, ..] = self.to_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

impl fmt::Display for AuthorityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Reason why an authority did not answer. Nothing counts as accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// The store cannot be reached, or did not answer in time.
    #[error("the authority cannot be reached: {0}")]
    Unavailable(String),
    /// The store could not save the change, for example on a full disk.
    #[error("the authority cannot store the change: {0}")]
    Storage(String),
    /// Stored data cannot be read.
    #[error("the authority's data is damaged: {0}")]
    Damaged(String),
    /// The store lost what it had answered before; it may have been restored from an older snapshot.
    #[error("the authority's store was replaced or restored: {0}")]
    WentBack(String),
    /// It has been closed.
    #[error("the authority is closed")]
    Closed,
}

impl From<NoIncarnation> for AuthorityError {
    fn from(error: NoIncarnation) -> Self {
        Self::Storage(error.to_string())
    }
}
