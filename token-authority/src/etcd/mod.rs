//! The etcd store: marks and sessions in an etcd cluster, for several proxies.
//!
//! # What every step relies on
//!
//! A step is one `Txn` of etcd: conditions, and operations for either outcome. etcd applies it as a whole, at one
//! revision of the store, and in the same order on every member. **Every step that decides has a write in it**, if
//! only of a key that nobody reads. So it goes through etcd's log and is never answered from what one member
//! believes to be current: several versions, Debian's 3.4.23 among them, could answer even "linearizable" reads
//! with an old value after the process was paused (<https://github.com/etcd-io/etcd/issues/20418>). Lists that do
//! not fit into one answer are read in pages at the revision of such a step; what a member has of a past revision
//! is final.
//!
//! **Every step compares the identity of the store.** In a store that was wiped, or made anew by somebody else, no
//! step of ours is taken. A store that was restored from a snapshot has our identity: it is known by a revision
//! below one that we have seen, by another cluster id, or by a mark that is missing or lower than before. Then
//! nothing is accepted any more until the process is restarted
//! ([`AuthorityError::WentBack`](crate::AuthorityError::WentBack)).
//!
//! **Every step can be repeated, and can come late.** An attempt that timed out, or whose caller is gone, may
//! still be in etcd's queue and be applied seconds later. Its conditions are then compared with the state of that
//! time, so it does what it would have done had it been sent then, or nothing.
//!
//! # Declaring
//!
//! One step: *if* the cluster on record is ours and the mark of the scope is still the one that we know (by the
//! revision of its last change), *then* write the mark if it rises, write the session, and read the sessions of
//! the scope if the mark is not drained; *else* read the cluster and the mark, and try again with them.
//!
//! - A declaration that raises the mark gets every session that was registered by then. One that registers at a
//!   lower token afterwards finds its condition on the mark false. So no lower session is outside the list, nor
//!   comes later.
//! - What is known of a mark is never trusted, only compared. If it is old, a round trip is lost.
//! - A late duplicate of a raise finds the mark changed by its twin, and does nothing. A late duplicate of a
//!   registration finds the mark as it was, and registers a session again that may have ended meanwhile. That
//!   record stands for a backend that is gone: the next takeover or the reaper removes it.
//! - An answer that was lost is asked for again, and is then `Current` where the lost one was `Raised`. Both lead
//!   to the barrier while the mark is not drained.
//! - A take, which is for the token after the mark, is such a step too: the token is counted from the mark that is
//!   compared. The mark says which take has raised it, so one whose answer was lost is not counted on from itself.
//!
//! A declaration may name an election: then the step is taken only if the key that leads is still there, as it was
//! when it was made. Which key that is, and that its number is the token, was read before, in a step. It leads for as
//! long as it is there, for every key that comes later has a higher number.
//!
//! # Removing, and marking as drained
//!
//! A scope can have thousands of sessions, and a step about a hundred operations. So `drained` works in batches,
//! and it may end between any two of them.
//!
//! - A session has two keys, its record and the entry that finds it by its backend. One operation writes or
//!   removes both.
//! - Each removal has a condition of its own, inside its step: the session's token is lower. A session that has
//!   moved up to the new token in the meantime stays. The backend of a removed one is gone, and no backend comes
//!   twice: so it does not matter how late a removal comes, or how often, or which of them were done before a
//!   crash.
//! - The scope is marked as drained in a step of its own, after all batches: *if* the mark is the one that we
//!   know, with this token, *and* every session's token is at least this one. etcd compares the whole range in
//!   that very step, so nothing is concluded from what the batches did or did not do. Where the step is not taken,
//!   it reads who is left.
//! - Once it is taken it stays true: while the mark is this token, no lower one can register, by the argument
//!   above. A higher mark is a new record, which is not drained.
//! - Removing all records of a session, in every scope, first reads where it has any. That read decides nothing:
//!   what it misses stays registered, and the reaper asks again.
//!
//! # Repairing
//!
//! One step: *if* the cluster on record is ours and the mark is still the one that we know, which is the one that the
//! operator has seen, *then* write the mark in the next incarnation, and read the sessions of the scope. It is a raise
//! like any other, for what comes from an earlier incarnation is lower whatever its number; so all that is said above
//! holds for it. Sessions carry their incarnation for this.
//!
//! # The cluster on record, and recovery
//!
//! Both are written under a condition on the revision of what was read. Recovery raises marks in batches and
//! writes the cluster last: whoever is interrupted repeats it, and until then nobody can declare for the new
//! cluster.
//!
//! # The watch
//!
//! One stream for all watchers of a handle. It is opened anew from the revision after the last one seen when it
//! breaks, when it is silent although asked for a sign of life, and when its member has no leader. Where etcd has
//! compacted what comes next, all marks are read and those are told that have changed since.

mod clusters;
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
mod scope_step;
mod status;
mod store;
mod takeovers;
mod watch;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::task::AbortHandle;

pub use election::{Candidate, Standing};
pub use open::OpenError;
pub use options::{DEFAULT_PREFIX, Options, OptionsError};
pub use status::{Endpoint, Member, Role};

use crate::{
    Answer, Authority, AuthorityId, Backend, Cluster, Declaration, Declared, Drained, Enrolled,
    Following, LeaseId, LeaseStep, Leased, Mark, Rank, Registered, RepairRequest, Repaired, Scope,
    TakeoverRecord, Token, Watch,
};
use open::Missing;
use store::Store;

/// The etcd store. Clones share the connections, which are closed with the last of them.
#[derive(Debug, Clone)]
pub struct Etcd {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<Store>,
    watch: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Etcd {
    /// Connects, and makes the store where there is none. Takes 5 s at most.
    ///
    /// The connections live in the runtime that this is called in; the store can be used from others too.
    ///
    /// Errors: files that cannot be read, no endpoint that answers, a refused login, no etcd, a store that a newer
    /// version has made.
    pub async fn connect(options: Options) -> Result<Self, OpenError> {
        match open::open(options, Missing::Make).await? {
            Some((store, revision)) => Ok(Self::new(store, revision)),
            None => Err(OpenError::Unreachable("no store was created".to_owned())),
        }
    }

    /// The same, but `None` where there is no store: it makes none.
    ///
    /// Errors: as [`Self::connect`].
    pub async fn find(options: Options) -> Result<Option<Self>, OpenError> {
        let found = open::open(options, Missing::Leave).await?;
        Ok(found.map(|(store, revision)| Self::new(store, revision)))
    }

    fn new(store: Store, revision: i64) -> Self {
        let store = Arc::new(store);
        let watching = Arc::clone(&store);
        let watch = tokio::spawn(async move { watching.run_watch(revision).await });
        let watch = watch.abort_handle();
        Self {
            inner: Arc::new(Inner { store, watch }),
        }
    }

    /// Every endpoint, in the order given, as it is now. Takes about a second at most.
    pub async fn endpoints(&self) -> Vec<Endpoint> {
        self.inner.store.endpoints().await
    }

    /// The number of who leads an election now. Takes as long as any other request.
    ///
    /// Errors: etcd does not answer, or its rights forbid to read the election.
    pub async fn leader(&self, election: &str) -> Answer<Option<Token>> {
        let (_, leader) = self.store().leader(election).await?;
        Ok(leader.map(|leader| leader.number()))
    }

    fn store(&self) -> &Store {
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
