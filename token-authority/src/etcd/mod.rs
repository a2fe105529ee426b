//! The etcd store: marks and sessions in an etcd cluster, for several proxies.
//!
//! # What every step relies on
//!
//! A step is one `Txn` of etcd: conditions, and operations for either outcome. etcd applies it as a whole, at one
//! revision of the store, and in the same order on every member. **Every step that decides contains a write**, if
//! only of a key that nothing reads. So it goes through etcd's log and is never answered from the state of one
//! member. Several versions, Debian's 3.4.23 among them, could answer even "linearizable" reads with an old value
//! after the process was paused (<https://github.com/etcd-io/etcd/issues/20418>). Lists too long for one answer are
//! read in pages at the revision of such a step; a member's data of a past revision is final.
//!
//! **Every step compares the identity of the store.** No step of ours is taken in a store that was wiped, or created
//! again by others. A store restored from a snapshot has our identity. It is recognized by a revision below one that
//! we have seen, by another cluster id, or by a mark that is missing or lower than before. Then nothing is accepted
//! until the process restarts ([`AuthorityError::WentBack`](crate::AuthorityError::WentBack)).
//!
//! **Every step can be repeated, and can come late.** An attempt that timed out, or whose caller is gone, may still
//! be in etcd's queue and be applied seconds later. Its conditions are then compared with the state of that time. So
//! it does nothing, or what the same step would have done if sent then.
//!
//! # Declaring
//!
//! One step: *if* the cluster on record is ours and the mark of the scope is still the known one (by the revision of
//! its last change), *then* write the mark if it rises, write the session, and read the sessions of the scope if it
//! is not drained; *else* read the cluster and the mark, and try again with them.
//!
//! - A declaration that raises the mark gets every session registered before. A later registration at a lower token
//!   finds its condition on the mark false. So no lower session is missing in the list, and none comes later.
//! - A known mark is never trusted, only compared. If it is old, only a round trip is lost.
//! - A late duplicate of a raise finds the mark changed by its twin, and does nothing. A late duplicate of a
//!   registration finds the mark unchanged, and registers a session again that may have ended. The next takeover or
//!   the reaper removes that record, because its backend is gone.
//! - A repeated request whose answer was lost gets `Current` instead of `Raised`. Both lead to the barrier while the
//!   scope is not drained.
//! - A take, which asks for the token after the mark, is such a step too: its token is computed from the compared
//!   mark. The mark records the take that raised it, so a repeated take does not raise the mark again.
//!
//! A declaration may name an election. Then the step also requires that the leading key still exists with its
//! creation revision. An earlier step read which key leads, and that its number is the token. The key leads while it
//! exists, because every later key has a higher number.
//!
//! # Removing, and marking as drained
//!
//! A scope can have thousands of sessions, but a step only about a hundred operations. So `drained` works in batches,
//! and may be interrupted between any two of them.
//!
//! - A session has two keys: its record, and the entry that finds it by its backend. One operation writes or removes
//!   both.
//! - Each removal has a separate condition in its step: the session's token is lower. A session that has moved up to
//!   the new token stays. The backend of a removed session is gone, and never comes back. So removals may come late
//!   or repeatedly, and a crash may come after any of them.
//! - A separate step after all batches marks the scope as drained: *if* the mark is the known one, with this token,
//!   *and* every session's token is at least this one. etcd compares the whole range in that very step, so it does
//!   not rely on the batches. If the step is not taken, it reads the sessions that are left.
//! - The scope then stays drained: while the mark has this token, no lower session can register, as shown above. A
//!   higher mark is a new record, which is not drained.
//! - Removing all records of a session first reads its scopes. That read decides nothing: a record that it misses
//!   stays, and the reaper asks again.
//!
//! # Repairing
//!
//! One step: *if* the cluster on record is ours and the mark is still the known one, which is the one that the
//! operator has seen, *then* write the mark in the next incarnation, and read the sessions of the scope. It is a
//! raise like any other, since everything of an earlier incarnation is lower, whatever its number. So the above
//! applies to it. Sessions carry their incarnation for this.
//!
//! # The cluster on record, and recovery
//!
//! Both are written on the condition that the revision read is unchanged. Recovery raises marks in batches and writes
//! the cluster last. An interrupted recovery is repeated, and until it ends no session can declare for the new
//! cluster.
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
mod repair;
mod reported;
mod scope_step;
mod status;
mod store;
mod takeovers;
mod watch;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::task::AbortHandle;

pub use connect::UnusableFile;
pub use election::ElectionCandidate;
pub use open::EtcdOpenError;
pub use options::{DEFAULT_PREFIX, Options, OptionsError};
pub use reported::{CandidateStatus, Endpoint, Member, MemberRole};

use crate::{
    Answer, Authority, AuthorityId, Backend, Cluster, Declaration, Declared, Drained, Enrolled,
    Following, LeaseId, LeaseStep, Leased, Mark, Rank, Registered, RepairRequest, Repaired, Scope,
    TakeoverRecord, Token, Watch,
};
use open::Missing;
use store::EtcdStore;

/// The etcd store. Clones share the connections, closed with the last clone.
#[derive(Debug, Clone)]
pub struct Etcd {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<EtcdStore>,
    watch: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Etcd {
    /// Connects, and creates the store if missing. Takes 5 s at most.
    ///
    /// The connections live in the calling runtime; the store can be used from others too.
    ///
    /// Errors: unreadable files, no endpoint that answers, a refused login, a server that is not etcd, a store of
    /// another version.
    pub async fn connect(options: Options) -> Result<Self, EtcdOpenError> {
        match open::open(options, Missing::Make).await? {
            Some((store, revision)) => Ok(Self::new(store, revision)),
            None => Err(EtcdOpenError::Unreachable(
                "no store was created".to_owned(),
            )),
        }
    }

    /// As [`Self::connect`], for whoever needs no more than a store.
    ///
    /// Errors: as [`Self::connect`].
    pub async fn open(options: Options) -> Result<Arc<dyn Authority>, EtcdOpenError> {
        Ok(Arc::new(Self::connect(options).await?))
    }

    /// As [`Self::connect`], but `None` if there is no store; creates none.
    ///
    /// Errors: as [`Self::connect`].
    pub async fn find(options: Options) -> Result<Option<Self>, EtcdOpenError> {
        let found = open::open(options, Missing::Leave).await?;
        Ok(found.map(|(store, revision)| Self::new(store, revision)))
    }

    fn new(store: EtcdStore, revision: i64) -> Self {
        let store = Arc::new(store);
        let watching = Arc::clone(&store);
        let watch = tokio::spawn(async move { watching.run_watch(revision).await });
        let watch = watch.abort_handle();
        Self {
            inner: Arc::new(Inner { store, watch }),
        }
    }

    /// The store by its trait, which a build without etcd does not implement.
    pub fn authority(&self) -> &dyn Authority {
        self
    }

    /// Current state of every endpoint, in the given order. Takes about a second at most.
    pub async fn endpoints(&self) -> Vec<Endpoint> {
        self.inner.store.endpoints().await
    }

    /// Number of an election's current leader. Takes as long as any other request.
    ///
    /// Errors: etcd does not answer, or the user may not read the election.
    pub async fn leader(&self, election: &str) -> Answer<Option<Token>> {
        let (_, leader) = self.store().leader(election).await?;
        Ok(leader.map(|leader| leader.number()))
    }

    fn store(&self) -> &EtcdStore {
        &self.inner.store
    }
}

#[async_trait]
impl Authority for Etcd {
    fn identity(&self) -> AuthorityId {
        self.store().identity
    }

    async fn enrol(&self, cluster: Cluster) -> Answer<Enrolled> {
        self.store().enrol(cluster).await
    }

    async fn declare(&self, declaration: &Declaration) -> Answer<Declared> {
        self.store().declare(declaration).await
    }

    async fn drained(&self, scope: &Scope, rank: Rank, gone: &[Backend]) -> Answer<Drained> {
        self.store().drained(scope, rank, gone).await
    }

    async fn forget(&self, gone: &[Backend]) -> Answer<()> {
        self.store().forget(gone).await
    }

    async fn sessions(&self) -> Answer<Vec<(Scope, Registered)>> {
        let store = self.store();
        let range = store.keys.sessions();
        let (_, all) = store.read_all(&range, |kv| store.read_session(kv)).await?;
        Ok(all)
    }

    async fn marks(&self) -> Answer<Vec<(Scope, Mark)>> {
        let (_, marks) = self.store().read_marks().await?;
        let told = marks.into_iter().map(|(scope, known)| {
            let marks::Known { mod_revision, row } = known;
            self.store().marks.put(&scope, mod_revision, row.clone());
            (scope, row.mark)
        });
        Ok(told.collect())
    }

    async fn mark(&self, scope: &Scope) -> Answer<Option<Mark>> {
        self.store().mark(scope).await
    }

    async fn repair(&self, request: &RepairRequest) -> Answer<Repaired> {
        self.store().repair(request).await
    }

    async fn cluster(&self) -> Answer<Option<Cluster>> {
        self.store().cluster().await
    }

    async fn recover(
        &self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Answer<Enrolled> {
        self.store().recover(seen, cluster, marks).await
    }

    async fn lease(&self, scope: &Scope, holder: LeaseId, step: LeaseStep) -> Answer<Leased> {
        self.store().lease(scope, holder, step).await
    }

    async fn note_takeovers(&self, scope: &Scope, records: &[TakeoverRecord]) -> Answer<()> {
        self.store().note_takeovers(scope, records).await
    }

    async fn takeovers(&self, of: Option<&Scope>) -> Answer<Vec<(Scope, TakeoverRecord)>> {
        self.store().takeovers(of).await
    }

    fn watch(&self) -> Watch {
        self.store().watchers.watch()
    }

    fn follow(&self, election: &str) -> Option<Following> {
        let store = Arc::clone(&self.inner.store);
        Some(store.follow(election))
    }
}
