//! The embedded store: one `redb` file for one proxy.
//!
//! A thread of its own owns the file. It takes every request that is waiting, applies them in one durable
//! transaction, then answers all of them, so that fifty declarations that arrive together pay for one commit.

mod open;
mod read;
mod tables;
mod worker;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

pub use open::OpenError;
pub use read::{Found, read};

use crate::record::cut_by;
use crate::{
    Answer, Authority, AuthorityError, AuthorityId, Backend, Change, Cluster, Declaration,
    Declared, Drained, Enrolled, Mark, Outcome, Rank, Registered, RepairRequest, Repaired, Scope,
    Watch, now_us,
};
use tables::{Fault, Tables};
use worker::{Call, Job};

/// Requests that may wait; more than that wait outside, in their callers.
const QUEUE: usize = 1024;
/// Changes that a watcher may be behind.
const WATCH_QUEUE: usize = 1024;

/// The embedded store. Clones share one open file, which is closed with the last of them.
#[derive(Debug, Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    identity: AuthorityId,
    jobs: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
    watchers: Mutex<Vec<mpsc::Sender<Change>>>,
}

impl Embedded {
    /// Opens `dir/authority.redb`, or makes it. `dir` is made too (mode 0700) when it is missing.
    ///
    /// Blocks while it reads the disk. Errors: no rights, a directory that everybody may write to, a file
    /// that another
    /// process has open, that is damaged, or that a newer version has written.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let store = open::open(dir)?;
        let identity = store.identity();
        let (jobs, queue) = mpsc::channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("authority".into())
            .spawn(move || worker::run(store, queue))
            .map_err(OpenError::Thread)?;
        Ok(Self {
            inner: Arc::new(Inner {
                identity,
                jobs: Some(jobs),
                thread: Some(thread),
                watchers: Mutex::default(),
            }),
        })
    }

    /// Hands one step to the thread and waits until it is durable.
    async fn call<T, F>(&self, step: F) -> Result<T, AuthorityError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tables<'_>) -> Result<T, Fault> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let jobs = self.inner.jobs.as_ref().ok_or(AuthorityError::Closed)?;
        let job: Box<dyn Job> = Box::new(Call::new(step, reply));
        jobs.send(job).await.map_err(|_| AuthorityError::Closed)?;
        answer.await.map_err(|_| AuthorityError::Closed)?
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<mpsc::Sender<Change>>> {
        let watchers = self.inner.watchers.lock();
        watchers.unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the watchers; those that are gone are forgotten.
    fn tell(&self, change: &Change) {
        let told = |watcher: &mpsc::Sender<Change>| {
            let sent = watcher.try_send(change.clone());
            !matches!(sent, Err(TrySendError::Closed(_)))
        };
        self.watchers().retain(told);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The thread ends when the queue is closed and empty; waiting for it makes the lock free on return.
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the embedded authority panicked");
        }
    }
}

impl Authority for Embedded {
    fn identity(&self) -> AuthorityId {
        self.inner.identity
    }

    fn enrol(&self, cluster: Cluster) -> Answer<'_, Enrolled> {
        Box::pin(async move {
            let enrolled = self.call(move |tables| tables.enrol(cluster)).await?;
            if enrolled == Enrolled::Accepted {
                self.tell(&Change::Cluster(cluster));
            }
            Ok(enrolled)
        })
    }

    fn declare<'a>(&'a self, declaration: &'a Declaration<'a>) -> Answer<'a, Declared> {
        let Declaration {
            scope,
            token,
            backend,
            cluster,
            by,
            max_step,
            if_stale,
        } = *declaration;
        let (own_scope, by) = (scope.clone(), cut_by(by).to_owned());
        Box::pin(async move {
            let step = move |tables: &mut Tables<'_>| {
                let declaration = Declaration {
                    scope: &own_scope,
                    token,
                    backend,
                    cluster,
                    by: &by,
                    max_step,
                    if_stale,
                };
                tables.declare(&declaration, now_us())
            };
            let declared = self.call(step).await?;
            if let Declared::Accepted {
                mark,
                outcome: Outcome::Raised,
                ..
            } = &declared
            {
                self.tell(&Change::Mark(scope.clone(), mark.clone()));
            }
            Ok(declared)
        })
    }

    fn drained<'a>(
        &'a self,
        scope: &'a Scope,
        rank: Rank,
        gone: &'a [Backend],
    ) -> Answer<'a, Drained> {
        let (scope, gone) = (scope.clone(), gone.to_vec());
        Box::pin(self.call(move |tables| tables.drained(&scope, rank, &gone)))
    }

    fn forget<'a>(&'a self, gone: &'a [Backend]) -> Answer<'a, ()> {
        let gone = gone.to_vec();
        Box::pin(self.call(move |tables| tables.forget(&gone)))
    }

    fn sessions(&self) -> Answer<'_, Vec<(Scope, Registered)>> {
        Box::pin(self.call(|tables| tables.sessions()))
    }

    fn marks(&self) -> Answer<'_, Vec<(Scope, Mark)>> {
        Box::pin(self.call(|tables| tables.marks()))
    }

    fn mark<'a>(&'a self, scope: &'a Scope) -> Answer<'a, Option<Mark>> {
        let scope = scope.clone();
        Box::pin(self.call(move |tables| tables.mark(&scope)))
    }

    fn repair<'a>(&'a self, request: &'a RepairRequest<'a>) -> Answer<'a, Repaired> {
        let RepairRequest {
            scope,
            expected,
            cluster,
            repair,
        } = *request;
        let (own_scope, repair) = (scope.clone(), repair.clone());
        Box::pin(async move {
            let step = move |tables: &mut Tables<'_>| {
                tables.repair(&RepairRequest {
                    scope: &own_scope,
                    expected,
                    cluster,
                    repair: &repair,
                })
            };
            let repaired = self.call(step).await?;
            if let Repaired::Done { mark, .. } = &repaired {
                self.tell(&Change::Mark(scope.clone(), mark.clone()));
            }
            Ok(repaired)
        })
    }

    fn cluster(&self) -> Answer<'_, Option<Cluster>> {
        Box::pin(self.call(|tables| tables.cluster()))
    }

    fn recover<'a>(
        &'a self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &'a [(Scope, Mark)],
    ) -> Answer<'a, Enrolled> {
        let marks = marks.to_vec();
        Box::pin(self.call(move |tables| tables.recover(seen, cluster, &marks)))
    }

    fn watch(&self) -> Watch {
        let (sender, watch) = mpsc::channel(WATCH_QUEUE);
        self.watchers().push(sender);
        watch
    }
}

#[cfg(test)]
mod tests;
