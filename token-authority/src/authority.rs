//! The contract of a store of marks: what every authority must do, and how it may fail.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};

use crate::{
    Backend, Claim, Cluster, LeaseId, LeaseStep, Leased, Mark, Rank, Registered, RepairRequest,
    Repaired, Scope, TakeId, TakeoverRecord, Token,
};

/// The answer of an authority.
pub type Answer<T> = Result<T, AuthorityError>;

/// The durable, linearizable store of marks and of the sessions bound to them.
///
/// Every method is one atomic step, and what it answered is durable before it answers. A step whose future is
/// dropped, or that ends in an error, may or may not have been taken; all of them can be repeated. The
/// caller bounds the wait.
#[async_trait]
pub trait Authority: Send + Sync + 'static {
    /// Which store this is: random, made when the store was created, the same for all who share it.
    fn identity(&self) -> AuthorityId;

    /// Records which cluster the marks are for, and how far its history has come.
    ///
    /// Accepted where none is recorded, and where the same cluster is recorded on an older timeline, or on the same
    /// one and a start of its server that is not later; this one is then on record. A primary that was deposed by a
    /// failover is on an older timeline than its successor, so once the successor is on record the old one is refused.
    /// So is a server beside which a copy of its storage was started, until it is started anew.
    async fn enrol(&self, cluster: Cluster) -> Answer<Enrolled>;

    /// Binds a session to a token.
    ///
    /// - another cluster on record than the declaration's, another timeline or start of it, or none: nothing changes,
    ///   [`Declared::OtherCluster`];
    /// - mark above the token: [`Declared::Stale`], and what [`IfStale`] says;
    /// - mark equal: the session is registered, [`Outcome::Current`];
    /// - mark below by more than the declaration allows: nothing changes, [`Declared::TooFar`];
    /// - mark below, or none: the mark rises and the session is registered, [`Outcome::Raised`].
    ///
    /// The token of a take is the one after the mark as it is in this very step. A take that names another mark changes
    /// nothing: [`Declared::Stale`] where the mark is above it, [`Declared::MarkIsLower`] where it is below. One that
    /// has raised the mark already, by its [`TakeId`], is [`Outcome::Current`].
    ///
    /// Where it names an election, a token that would be accepted so far is accepted only if it is the number of the
    /// leader in this very step: else nothing changes, [`Declared::NotElected`]. A store that holds no elections
    /// accepts none that names one.
    ///
    /// The token counts as one of the scope's present incarnation. A session that is registered in the scope at a
    /// lower rank moves up and is not in its own `lower`. It never moves down.
    async fn declare(&self, declaration: &Declaration) -> Answer<Declared>;

    /// Every registered session, for the reaper.
    async fn sessions(&self) -> Answer<Vec<(Scope, Registered)>>;

    /// Every mark, to fill caches at start. Marks are never deleted.
    async fn marks(&self) -> Answer<Vec<(Scope, Mark)>>;

    /// The mark of one scope.
    async fn mark(&self, scope: &Scope) -> Answer<Option<Mark>>;

    /// Tells that these sessions were seen to be gone from PostgreSQL. Removes their records in the scope where the
    /// rank is lower, and no others. The scope is marked as drained for the rank only if no lower record is left and
    /// it is still that of the mark.
    async fn drained(&self, scope: &Scope, rank: Rank, gone: &[Backend]) -> Answer<Drained>;

    /// Removes all records of sessions that have ended, in every scope. Unknown ones are no error.
    ///
    /// A session that has ended never comes back, for no other has its process id and its start. So this stays true
    /// however late it comes, and however often. Nothing else removes a record, but [`Self::drained`], which is about
    /// such sessions too.
    async fn forget(&self, gone: &[Backend]) -> Answer<()>;

    /// For an operator: sets the mark of a scope, down or up, in the next incarnation of the scope. Everything that
    /// was registered in it is below the new mark, so a declaration that comes before is among those that are to be
    /// ended, and one that comes after is judged by the new mark. This is the only step that can lower a mark's
    /// token; its rank rises.
    ///
    /// Asked for again with the same record, it changes nothing and answers as before, with those who are left.
    async fn repair(&self, request: &RepairRequest) -> Answer<Repaired>;

    /// Which cluster is on record.
    async fn cluster(&self) -> Answer<Option<Cluster>>;

    /// Takes a step with the lease of a scope. One candidate holds it at most, and loses it where it has not renewed it
    /// in its time, which the store counts from this step on, by its own clock: so a holder that counts from before it
    /// asked steps down first. One that has lapsed may be renewed as long as nobody else has acquired it.
    ///
    /// Raises no mark and decides nothing about writes: a holder that sleeps is fenced by its token, not by its lease.
    async fn lease(&self, scope: &Scope, holder: LeaseId, step: LeaseStep) -> Answer<Leased>;

    /// Keeps how takeovers of a scope went, the last [`TakeoverRecord::KEPT`] of them. Several attempts at one are one
    /// record. For people: nothing is decided by it.
    async fn note_takeovers(&self, scope: &Scope, records: &[TakeoverRecord]) -> Answer<()>;

    /// The takeovers of one scope, or those of all, the newest first, [`TakeoverRecord::LISTED`] at most. Of all scopes
    /// those are looked at that a takeover was noted of last, and the last one of each is among them.
    async fn takeovers(&self, of: Option<&Scope>) -> Answer<Vec<(Scope, TakeoverRecord)>>;

    /// What changes in the store from now on, through whichever proxy.
    ///
    /// For speed, never for safety: it may come late, tell the same twice and leave out what was overtaken. What
    /// happened while the store could not be reached is told once it can be. Ends when the store is closed.
    fn watch(&self) -> Watch;

    /// Follows an election that is held in this store: who leads, from now on. `None`: it holds no elections.
    ///
    /// For speed, never for safety, as [`Self::watch`]. What it tells may be over by the time that it is heard. To be
    /// called inside a runtime; ends with the receiver, or where the store accepts nothing any more.
    fn follow(&self, _election: &str) -> Option<Following> {
        None
    }

    /// For an operator, when no proxy serves: records the cluster, and brings marks up to these where they are lower,
    /// by their rank, or missing. No mark falls, no session is registered, and a scope whose mark rises is not drained.
    ///
    /// `seen` is what was on record when the operator decided. Refused, and nothing changes, where another cluster is
    /// on record by now: a step that comes late or twice takes back nothing that came after it.
    async fn recover(
        &self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Answer<Enrolled>;
}

/// Changes of a store, as they become known. It is to be read all the time: a store may leave out what does not fit.
pub type Watch = mpsc::Receiver<Change>;

/// The number of who leads an election; `None` where nobody does, or it is not known yet.
pub type Following = watch::Receiver<Option<Token>>;

/// Something that has changed in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A mark has risen in rank: a higher token, or a repair.
    Mark(Scope, Mark),
    /// A cluster, or a newer timeline or start of it, is on record.
    Cluster(Cluster),
}

/// The answer to [`Authority::enrol`] and [`Authority::recover`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enrolled {
    /// The cluster is on record.
    Accepted,
    /// Nothing has changed: this one is on record.
    Refused {
        /// Another cluster, or the same one on a newer timeline, or started later.
        recorded: Cluster,
    },
}

/// What a session declares.
#[derive(Debug, Clone)]
pub struct Declaration {
    /// The scope.
    pub scope: Scope,
    /// The token, or how it is to be found.
    pub claim: Claim,
    /// Which take it is. One without cannot be made again.
    pub take: Option<TakeId>,
    /// The session.
    pub backend: Backend,
    /// The cluster that the session is on, as enrolled.
    pub cluster: Cluster,
    /// Who declares, in words for people; kept with the mark, cut at 200 bytes.
    pub by: String,
    /// How far the token may be above the mark, where the scope has one. `None`: any distance.
    pub max_step: Option<u64>,
    /// The highest token that a take may come to, where the scope has a mark.
    pub max_token: Option<u64>,
    /// What becomes of the session where the token is below the mark.
    pub if_stale: IfStale,
    /// The election whose leader's number the token must be, besides all else.
    pub election: Option<Arc<str>>,
}

impl Declaration {
    /// By any distance above the mark, and refused below it.
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

    /// Refuses it in a store that holds no elections, where it names one.
    pub(crate) fn names_no_election(&self) -> Answer<()> {
        match &self.election {
            None => Ok(()),
            Some(election) => Err(AuthorityError::Unavailable(format!(
                "this store holds no elections, so the leader of {election:?} cannot be determined"
            ))),
        }
    }

    /// The token at which the session is registered where the mark is above it. A take that is refused has none.
    pub(crate) const fn stale_token(&self) -> Option<Token> {
        match (self.if_stale, self.claim) {
            (IfStale::Register, Claim::Token(token)) => Some(token),
            _ => None,
        }
    }
}

/// What becomes of a session that declares a token below the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfStale {
    /// Nothing changes.
    Refuse,
    /// It may go on, for its refusal is only observed. So it is registered at its own rank, and the scope is not
    /// drained any more: the next takeover ends it. The mark stays.
    Register,
}

/// The answer to a declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Declared {
    /// The token is below the mark, or the mark is above the one that a take names. It has not changed.
    Stale {
        /// The mark that stands above it.
        mark: Mark,
    },
    /// The token is further above the mark than the declaration allows. Nothing has changed.
    TooFar {
        /// The mark that it would have raised.
        mark: Mark,
    },
    /// The mark is below the one that a take names, or there is none. Nothing has changed.
    MarkIsLower {
        /// The mark, where there is one.
        mark: Option<Mark>,
    },
    /// The token is not below the mark, and not the number of who leads the election. Nothing has changed.
    NotElected {
        /// The number of who leads it, if anybody does.
        leader: Option<Token>,
        /// The mark, where there is one.
        mark: Option<Mark>,
    },
    /// Another cluster is on record, or another timeline or start of it, or none. Nothing has changed.
    OtherCluster {
        /// What is on record.
        recorded: Option<Cluster>,
    },
    /// The session is registered. It may write only when no session of `lower` is left.
    Accepted {
        /// The mark, which is the declared token.
        mark: Mark,
        /// Whether this declaration raised it.
        outcome: Outcome,
        /// Every registered session of the scope with a lower rank, in the order of [`Backend`]. Empty once the
        /// scope was drained for this one.
        lower: Vec<Registered>,
    },
}

/// What an accepted declaration did to the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It rose: a takeover.
    Raised,
    /// It was already there, also where this very take had brought it there before.
    Current,
}

/// The answer to [`Authority::drained`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drained {
    /// No lower session is registered. If the rank is still the mark's, this is now on record.
    Complete,
    /// These are still registered with a lower rank; the scope is not drained.
    Left(Vec<Registered>),
}

/// Which store an authority is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AuthorityId(u128);

impl AuthorityId {
    /// A new random identity.
    pub(crate) fn random() -> Self {
        Self(rand::random())
    }

    /// The identity as stored.
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// To store it.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The first 32 bits, for the object of the advisory lock by which proxies see each other.
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

impl fmt::Debug for AuthorityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthorityId({self})")
    }
}

/// Why an authority did not answer. Nothing may be taken as accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// It cannot be reached, or did not answer in time.
    #[error("the authority cannot be reached: {0}")]
    Unavailable(String),
    /// It could not store the change: a full disk, say.
    #[error("the authority cannot store the change: {0}")]
    Storage(String),
    /// What it has stored cannot be read.
    #[error("the authority's data is damaged: {0}")]
    Damaged(String),
    /// It has forgotten what it had answered before: it was restored from an older snapshot, say.
    #[error("the authority's store was replaced or restored: {0}")]
    WentBack(String),
    /// It has been closed.
    #[error("the authority is closed")]
    Closed,
}
