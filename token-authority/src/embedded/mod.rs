//! The embedded store: one `redb` file for one proxy.
//!
//! One thread owns the file. It applies all waiting requests in one durable transaction, then answers them: group
//! commit.

mod fault;
mod open;
mod read;
mod tables;
mod worker;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc as threads;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::mpsc;

pub use read::{Found, has_room, read, try_open};

use crate::leases::Leases;
use crate::rule::Records as _;
use crate::watchers::Watchers;
use crate::{
    Answer, Authority, AuthorityError, AuthorityId, Backend, Change, Cluster, Declaration,
    DeclareOutcome, Declared, Drained, Enrolled, LeaseId, LeaseStep, Leased, Mark, OpenError, Rank,
    Registered, RepairRequest, Repaired, Scope, TakeoverRecord, Watch, now_us,
};
use fault::StepError;
use tables::StoreTables;
use worker::Job;

/// Queued requests; further callers wait to enqueue.
const QUEUE: usize = 1024;

/// Time in which the thread ends. A disk that hangs must not hold up the end of the process.
const END_WITHIN: Duration = Duration::from_secs(5);

/// The embedded store. Clones share one open file, closed with the last clone.
#[derive(Debug, Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    identity: AuthorityId,
    jobs: Option<mpsc::Sender<Job>>,
    /// Disconnected by the end of the thread.
    ended: Mutex<threads::Receiver<()>>,
    watchers: Watchers,
    leases: Leases,
}

impl Embedded {
    /// Opens `dir/authority.redb`, and creates it and `dir` (mode 0700) if missing.
    ///
    /// Blocks while it reads the disk. Errors: missing rights, a directory writable by every user, and a file that is
    /// open in another process, damaged, or written by a newer version.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let store = open::open(dir)?;
        let identity = store.identity();
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (ends, ended) = threads::channel();
        std::thread::Builder::new()
            .name("authority".into())
            .spawn(move || {
                let _ends = ends;
                worker::run(store, queue);
            })
            .map_err(|error| {
                OpenError::Unusable(format!("cannot start the authority's thread: {error}"))
            })?;
        Ok(Self {
            inner: Arc::new(Inner {
                identity,
                jobs: Some(jobs),
                ended: Mutex::new(ended),
                watchers: Watchers::default(),
                leases: Leases::default(),
            }),
        })
    }

    async fn call<T, F>(&self, step: F) -> Answer<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut StoreTables<'_>) -> Result<T, StepError> + Send + 'static,
    {
        let jobs = self.inner.jobs.as_ref().ok_or(AuthorityError::Closed)?;
        worker::call(jobs, step).await
    }

    fn tell_mark(&self, scope: &Scope, mark: &Mark) {
        let change = Change::Mark(scope.clone(), mark.clone());
        self.inner.watchers.tell_at_once(&change);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The thread ends once the queue is closed and empty; after its end the file lock is free.
        drop(self.jobs.take());
        let ended = self.ended.get_mut().recv_timeout(END_WITHIN);
        if ended == Err(threads::RecvTimeoutError::Timeout) {
            tracing::error!("the embedded authority's disk did not answer in time");
        }
    }
}

#[async_trait]
impl Authority for Embedded {
    fn identity(&self) -> AuthorityId {
        self.inner.identity
    }

    async fn enrol(&self, cluster: Cluster) -> Answer<Enrolled> {
        let enrolled = self.call(move |tables| tables.enrol(cluster)).await?;
        if enrolled == Enrolled::Accepted {
            self.inner.watchers.tell_at_once(&Change::Cluster(cluster));
        }
        Ok(enrolled)
    }

    async fn declare(&self, declaration: &Declaration) -> Answer<Declared> {
        declaration.names_no_election()?;
        let own = declaration.clone();
        let step = move |tables: &mut StoreTables<'_>| tables.declare(&own, now_us());
        let declared = self.call(step).await?;
        if let Declared::Accepted {
            mark,
            outcome: DeclareOutcome::Raised,
            ..
        } = &declared
        {
            self.tell_mark(&declaration.scope, mark);
        }
        Ok(declared)
    }

    async fn drained(&self, scope: &Scope, rank: Rank, gone: &[Backend]) -> Answer<Drained> {
        let (scope, gone) = (scope.clone(), gone.to_vec());
        self.call(move |tables| tables.drained(&scope, rank, &gone))
            .await
    }

    async fn forget(&self, gone: &[Backend]) -> Answer<()> {
        let gone = gone.to_vec();
        self.call(move |tables| tables.forget(&gone)).await
    }

    async fn sessions(&self) -> Answer<Vec<(Scope, Registered)>> {
        self.call(|tables| tables.sessions()).await
    }

    async fn marks(&self) -> Answer<Vec<(Scope, Mark)>> {
        self.call(|tables| tables.marks()).await
    }

    async fn mark(&self, scope: &Scope) -> Answer<Option<Mark>> {
        let scope = scope.clone();
        self.call(move |tables| tables.mark(&scope)).await
    }

    async fn repair(&self, request: &RepairRequest) -> Answer<Repaired> {
        let own = request.clone();
        let repaired = self.call(move |tables| tables.repair(&own)).await?;
        if let Repaired::Done { mark, .. } = &repaired {
            self.tell_mark(&request.scope, mark);
        }
        Ok(repaired)
    }

    async fn cluster(&self) -> Answer<Option<Cluster>> {
        self.call(|tables| tables.cluster()).await
    }

    async fn recover(
        &self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Answer<Enrolled> {
        let marks = marks.to_vec();
        self.call(move |tables| tables.recover(seen, cluster, &marks))
            .await
    }

    async fn lease(&self, scope: &Scope, holder: LeaseId, step: LeaseStep) -> Answer<Leased> {
        Ok(self.inner.leases.step(scope, holder, step))
    }

    async fn note_takeovers(&self, scope: &Scope, records: &[TakeoverRecord]) -> Answer<()> {
        let (scope, records) = (scope.clone(), records.to_vec());
        self.call(move |tables| tables.note(&scope, &records, now_us()))
            .await
    }

    async fn takeovers(&self, of: Option<&Scope>) -> Answer<Vec<(Scope, TakeoverRecord)>> {
        let of = of.cloned();
        self.call(move |tables| tables.takeovers(of.as_ref())).await
    }

    fn watch(&self) -> Watch {
        self.inner.watchers.watch()
    }
}

#[cfg(test)]
mod tests;
