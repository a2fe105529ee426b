//! The etcd store: marks and sessions in an etcd cluster, for several proxies.
//!
//! # What every step relies on
//!
//! A step is one `Txn` of etcd: conditions, and operations for either outcome. etcd applies it as a whole, at one
//! revision, in the same order on every member.
//!
//! - **It contains a write**, if only of a key that nothing reads. So it goes through etcd's log. Several versions,
//!   Debian's 3.4.23 among them, could answer "linearizable" reads with an old value after the process was paused
//!   (<https://github.com/etcd-io/etcd/issues/20418>). Lists too long for one answer are read in pages at the
//!   revision of such a step; a member's data of a past revision is final.
//! - **It compares the identity of the store**, which a wiped or newly created store lacks. A store restored from a
//!   snapshot is recognized by a revision below one that we have seen, by another cluster id, or by a mark that is
//!   missing or lower than before. Then nothing is accepted until the process restarts
//!   ([`AuthorityError::WentBack`](crate::AuthorityError::WentBack)).
//! - **It can be repeated, and can come late.** An attempt that timed out, or whose caller is gone, may be applied
//!   seconds later. Its conditions are then compared with the state of that time.
//!
//! # Declaring
//!
//! One step: *if* the recorded cluster is ours and the mark of the scope is still the known one (by the revision of
//! its last change), *then* write the mark if it rises, write the session, and read the sessions of the scope if it
//! is not drained; *else* read the cluster and the mark, and try again.
//!
//! - A declaration that raises the mark gets every session registered before. A later registration at a lower token
//!   finds its condition false. So no lower session is missing in the list, and none comes later.
//! - A known mark is only compared. If it is old, a round trip is lost.
//! - A late duplicate of a raise does nothing. A late duplicate of a registration may register a session that has
//!   ended; the next takeover or the reaper removes that record.
//! - A repeated request whose answer was lost gets `Current` instead of `Raised`. Both lead to the barrier while the
//!   scope is not drained.
//! - A take computes its token from the compared mark, which records the take that raised it.
//!
//! If a declaration names an election, the step also requires that the leading key still exists with its creation
//! revision. An earlier step read which key leads, and its number, the token. A key leads while it exists, because
//! every later key has a higher number.
//!
//! # Removing, and marking as drained
//!
//! A scope can have thousands of sessions, but a step only about a hundred operations. So `drained` works in batches.
//!
//! - A session has two keys, written and removed together: its record, and the entry that finds it by its backend.
//! - Each removal has a separate condition: the session's token is lower. The backend of a removed session never
//!   comes back, so removals may come late or repeatedly, and a crash may come after any of them.
//! - After all batches, a separate step marks the scope as drained: *if* the mark is the known one, with this token,
//!   *and* every session's token is at least this one, which etcd compares over the whole range. Otherwise it reads
//!   the sessions that are left.
//! - The scope stays drained while the mark has this token, because no lower session can register.
//! - `forget` first reads a session's scopes. A record that it misses stays, and the reaper asks again.
//!
//! # Repairing, and recovery
//!
//! A repair writes the mark in the next incarnation, on the conditions of a declaration, and reads the sessions of
//! the scope. Sessions carry their incarnation, so all earlier ones are lower.
//!
//! Recovery raises marks in batches and writes the cluster last. If interrupted, it is repeated, and until it ends no
//! session can declare for the new cluster.
//!
//! # The watch
//!
//! One stream serves all watchers of a handle. It is reopened after the last revision seen if it breaks, if it is
//! silent despite a progress request, or if its member has no leader. If etcd has compacted what comes next, all
//! marks are read, and those changed since are reported.

mod clusters;
mod connect;
mod declare;
mod election;
mod fault;
mod follow;
mod history;
mod keys;
mod lease;
mod marks;
mod members;
mod open;
mod options;
mod removal;
mod reported;
mod store;
mod takeovers;
mod watch;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::task::JoinSet;

pub use election::{ElectionCandidate, follow_election};
pub use options::{DEFAULT_PREFIX, Options};
pub use reported::CandidateStatus;

use crate::{
    Answer, Authority, AuthorityId, Backend, Cluster, Declaration, Declared, Drained, Enrolled,
    Following, LeaseId, LeaseStep, Leased, Mark, OpenError, Rank, Registered, RepairRequest,
    Repaired, Scope, TakeoverRecord, Token, Watch,
};
use open::Missing;
use store::EtcdStore;

/// The etcd store. Clones share the connections and the watch, which end with the last clone.
#[derive(Debug, Clone)]
pub struct Etcd {
    store: Arc<EtcdStore>,
    _watch: Arc<JoinSet<()>>,
}

impl Etcd {
    /// Connects, and creates the store if missing. Takes 5 s at most.
    ///
    /// The connections live in the calling runtime; the store can be used from others too.
    ///
    /// Errors: unreadable files, no endpoint that answers, a refused login, a server that is not etcd, a store of
    /// another version.
    pub async fn connect(options: Options) -> Result<Self, OpenError> {
        match open::open(options, Missing::Make).await? {
            Some((store, revision)) => Ok(Self::new(store, revision)),
            None => Err(OpenError::Unusable("no store was created".to_owned())),
        }
    }

    /// As [`Self::connect`], as a trait object.
    ///
    /// Errors: as [`Self::connect`].
    pub async fn open(options: Options) -> Result<Arc<dyn Authority>, OpenError> {
        Ok(Arc::new(Self::connect(options).await?))
    }

    /// As [`Self::connect`], but `None` if there is no store; creates none.
    ///
    /// Errors: as [`Self::connect`].
    pub async fn find(options: Options) -> Result<Option<Self>, OpenError> {
        let found = open::open(options, Missing::Leave).await?;
        Ok(found.map(|(store, revision)| Self::new(store, revision)))
    }

    fn new(store: EtcdStore, revision: i64) -> Self {
        let store = Arc::new(store);
        let watching = Arc::clone(&store);
        let mut watch = JoinSet::new();
        watch.spawn(async move { watching.run_watch(revision).await });
        Self {
            store,
            _watch: Arc::new(watch),
        }
    }

    /// The store by its trait, which a build without etcd does not implement.
    pub fn authority(&self) -> &dyn Authority {
        self
    }

    /// Number of an election's current leader. Takes as long as any other request.
    ///
    /// Errors: etcd does not answer, or the user may not read the election.
    pub async fn leader(&self, election: &str) -> Answer<Option<Token>> {
        let (_, leader) = self.store.leader(election).await?;
        Ok(leader.map(|leader| leader.number))
    }
}

#[async_trait]
impl Authority for Etcd {
    fn identity(&self) -> AuthorityId {
        self.store.identity
    }

    async fn enrol(&self, cluster: Cluster) -> Answer<Enrolled> {
        let accepts = |recorded: Cluster| cluster.follows(&recorded);
        self.store.record(cluster, &[], accepts).await
    }

    async fn declare(&self, declaration: &Declaration) -> Answer<Declared> {
        self.store.declare(declaration).await
    }

    async fn drained(&self, scope: &Scope, rank: Rank, gone: &[Backend]) -> Answer<Drained> {
        self.store.drained(scope, rank, gone).await
    }

    async fn forget(&self, gone: &[Backend]) -> Answer<()> {
        self.store.forget(gone).await
    }

    async fn sessions(&self) -> Answer<Vec<(Scope, Registered)>> {
        let store = &self.store;
        let range = store.keys.sessions();
        Ok(store.read_all(&range, |kv| store.read_session(kv)).await?.1)
    }

    async fn marks(&self) -> Answer<Vec<(Scope, Mark)>> {
        let (_, marks) = self.store.read_marks().await?;
        let told = marks.into_iter().map(|(scope, known)| {
            let mark = known.row.mark.clone();
            self.store.marks.put(&scope, known.mod_revision, known.row);
            (scope, mark)
        });
        Ok(told.collect())
    }

    async fn mark(&self, scope: &Scope) -> Answer<Option<Mark>> {
        self.store.mark(scope).await
    }

    async fn repair(&self, request: &RepairRequest) -> Answer<Repaired> {
        self.store.repair(request).await
    }

    async fn cluster(&self) -> Answer<Option<Cluster>> {
        Ok(self.store.on_record().await?.0)
    }

    async fn recover(
        &self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Answer<Enrolled> {
        let accepts = |recorded| cluster.recovers(seen, recorded);
        self.store.record(cluster, marks, accepts).await
    }

    async fn lease(&self, scope: &Scope, holder: LeaseId, step: LeaseStep) -> Answer<Leased> {
        self.store.lease(scope, holder, step).await
    }

    async fn note_takeovers(&self, scope: &Scope, records: &[TakeoverRecord]) -> Answer<()> {
        self.store.note_takeovers(scope, records).await
    }

    async fn takeovers(&self, of: Option<&Scope>) -> Answer<Vec<(Scope, TakeoverRecord)>> {
        self.store.takeovers(of).await
    }

    fn watch(&self) -> Watch {
        self.store.watchers.watch()
    }

    fn follow(&self, election: &str) -> Option<Following> {
        Some(Arc::clone(&self.store).follow(election))
    }
}
