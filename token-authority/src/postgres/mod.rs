//! The PostgreSQL store: a separate schema in a PostgreSQL that several proxies share.
//!
//! # Why the steps are atomic
//!
//! Every step is one function on the server, called in one statement. Its transaction first checks that the store is
//! ours (`own`), and is sent at once, so a proxy that stops in the middle holds no lock. The isolation level is READ
//! COMMITTED, and the function is `VOLATILE`: each of its statements sees what was committed before that statement
//! began (<https://www.postgresql.org/docs/current/transaction-iso.html>). So reads after a lock see what its
//! previous holder committed.
//!
//! - *A scope* is locked by its row in `marks` (`FOR UPDATE`), by declarations, `drained` and repairs. If the row is
//!   missing, `ON CONFLICT DO NOTHING` inserts it or waits for a concurrent insert. Rows are never deleted.
//! - *The cluster* is locked by the table lock of `store`: `ROW SHARE` for declarations, which do not block each
//!   other, `EXCLUSIVE` to enrol or recover. Table locks queue, so declarations cannot starve an enrolment. A
//!   declaration with its lock is committed before the enrolment is answered; a later one sees the new cluster.
//! - *`forget`* locks no scope: a declaration sees a removed session or not, and each case is an order of the two
//!   steps.
//! - A declaration locks in this order: cluster, the row of its connection, scopes by name. If steps deadlock all the
//!   same, the server aborts one, which is retried.
//!
//! An answer counts once the server sends ReadyForQuery, which it does after the commit, without a warning (see
//! `connection`). `synchronous_commit` is at least `on`.
//!
//! # A store that has gone back in time
//!
//! A standby that lagged, or a restored backup, lacks answered steps. So every step also counts up a row of its
//! connection. A server keeps a prefix of its log: if the last answered step is there, so are all before it. This is
//! checked first after a lost connection. If the step is missing, every call ends with [`AuthorityError::WentBack`].

mod connection;
mod open;
mod options;
mod own;
mod read;
mod steps;
mod takeovers;
mod watch;
mod worker;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

pub use open::PostgresOpenError;
pub use options::{Options, OptionsError};
pub use read::{ServerInfo, read};

use crate::{
    Answer, Authority, AuthorityError, AuthorityId, Backend, Cluster, Declaration, Declared,
    Drained, Enrolled, LeaseId, LeaseStep, Leased, Mark, Rank, Registered, RepairRequest, Repaired,
    Scope, TakeoverRecord, Watch,
};
use connection::ConnectionError;
use options::SCHEMA;
use own::Locks;
use steps::{
    All, AnswerSender, Declare, Forget, MARK, Value, cluster_values, integer, rank_values, text,
    value,
};
use watch::StoreReader;
use worker::{Alone, Job, Worker};

/// Queued steps; further callers wait to enqueue.
const QUEUE: usize = 1024;
/// Factor of a call's limit for recovery.
const RECOVERY: u32 = 12;

/// The PostgreSQL store. Clones share two connections, closed with the last clone.
#[derive(Clone)]
pub struct Postgres {
    inner: Arc<Inner>,
}

struct Inner {
    identity: AuthorityId,
    options: Options,
    jobs: mpsc::Sender<Job>,
    reader: Arc<StoreReader>,
    watching: JoinHandle<()>,
}

impl Postgres {
    /// Connects to the store, and creates its schema on first use. Needs a tokio runtime, which then runs its
    /// connections. Takes at most a few times the options' timeout.
    ///
    /// Errors: no connection, a standby, missing rights (with the SQL that grants them), a schema that is damaged or
    /// of another version.
    pub async fn connect(options: &Options) -> Result<Self, PostgresOpenError> {
        let identity = open::open(options).await?;
        let mut worker = Worker::new(options.clone(), identity);
        let error = |error| open::open_error(options, error);
        worker.connected().await.map_err(error)?;
        let reader = Arc::new(StoreReader::new(options.clone(), identity));
        let unreachable = |error: AuthorityError| PostgresOpenError::Unreachable {
            place: options.to_string(),
            why: error.to_string(),
        };
        let told = reader.begin().await.map_err(unreachable)?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        // Ends when the queue is closed and empty.
        tokio::spawn(worker.run(queue));
        let watching = tokio::spawn(Arc::clone(&reader).run(told));
        Ok(Self {
            inner: Arc::new(Inner {
                identity,
                options: options.clone(),
                jobs,
                reader,
                watching,
            }),
        })
    }

    /// Sends one step to the worker and waits until it is durable.
    async fn step<T>(
        &self,
        patience: u32,
        job: impl FnOnce(AnswerSender<T>) -> Job,
    ) -> Result<T, AuthorityError> {
        let (reply, answer) = oneshot::channel();
        let job = job(reply);
        let taken = async {
            let queued = self.inner.jobs.send(job).await;
            queued.map_err(|_| AuthorityError::Closed)?;
            answer.await.map_err(|_| AuthorityError::Closed)?
        };
        self.bounded(self.inner.options.timeout() * patience, taken)
            .await
    }

    /// As `step`, for a step with a separate commit, whose rows `read` understands.
    async fn alone<T>(
        &self,
        function: &'static str,
        arguments: impl Into<Vec<Value>>,
        patience: u32,
        read: fn(&[Row]) -> Result<T, ConnectionError>,
    ) -> Answer<T> {
        let arguments = arguments.into();
        let alone = |reply| {
            Job::Alone(Alone {
                function,
                arguments,
                patience,
                reply,
            })
        };
        let rows = self.step(patience, alone).await?;
        read(&rows).map_err(|error| self.explain(error))
    }

    fn explain(&self, error: ConnectionError) -> AuthorityError {
        error.into_authority(&self.inner.options.to_string())
    }

    /// Reads all rows. Each must arrive within a call's timeout.
    async fn rows<T>(&self, (sql, read): All<T>) -> Result<Vec<T>, AuthorityError> {
        let bound = self.inner.options.timeout();
        let link = self.bounded(bound, self.inner.reader.link()).await?;
        let rows = link.own(bound, Locks::Look, &sql, &[]).await;
        match rows.and_then(|rows| rows.iter().map(read).collect()) {
            Ok(all) => Ok(all),
            Err(error) => {
                if matches!(error, ConnectionError::Broken(_)) {
                    self.inner.reader.discard(&link).await;
                }
                Err(self.explain(error))
            }
        }
    }

    async fn bounded<T>(
        &self,
        bound: Duration,
        call: impl Future<Output = Result<T, AuthorityError>>,
    ) -> Result<T, AuthorityError> {
        match timeout(bound, call).await {
            Ok(answer) => answer,
            Err(_) => {
                let why = format!("{}: no answer within {bound:?}", self.inner.options);
                Err(AuthorityError::Unavailable(why))
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({})", self.inner.options)
    }
}

#[async_trait]
impl Authority for Postgres {
    fn identity(&self) -> AuthorityId {
        self.inner.identity
    }

    async fn enrol(&self, cluster: Cluster) -> Answer<Enrolled> {
        let cluster = cluster_values(Some(cluster));
        self.alone("enrol", cluster, 1, steps::enrolled).await
    }

    async fn declare(&self, declaration: &Declaration) -> Answer<Declared> {
        declaration.names_no_election()?;
        let declaration = declaration.clone();
        self.step(1, |reply| Job::Declare(Declare { declaration, reply }))
            .await
    }

    async fn drained(&self, scope: &Scope, rank: Rank, gone: &[Backend]) -> Answer<Drained> {
        let mut arguments = vec![text(scope.to_string())];
        arguments.extend(rank_values(rank));
        arguments.extend(steps::backends(gone.iter().copied()));
        self.alone("drained", arguments, 1, steps::drained).await
    }

    async fn forget(&self, gone: &[Backend]) -> Answer<()> {
        let gone = gone.to_vec();
        self.step(1, |reply| Job::Forget(Forget { gone, reply }))
            .await
    }

    async fn sessions(&self) -> Answer<Vec<(Scope, Registered)>> {
        self.rows(steps::all_sessions()).await
    }

    async fn marks(&self) -> Answer<Vec<(Scope, Mark)>> {
        self.rows(steps::all_marks()).await
    }

    async fn mark(&self, scope: &Scope) -> Answer<Option<Mark>> {
        // Scope names need no quoting.
        let sql = format!("SELECT {MARK} FROM {SCHEMA}.marks m WHERE m.scope = '{scope}'");
        let read = self.rows((sql, |row| steps::mark(row, 0))).await?;
        Ok(read.into_iter().next())
    }

    async fn repair(&self, request: &RepairRequest) -> Answer<Repaired> {
        let mark = Mark::repaired(request)?;
        let repair = steps::repair_text(&request.repair).map_err(|error| self.explain(error))?;
        let mut arguments = vec![text(request.scope.to_string())];
        arguments.extend(rank_values(request.expected));
        arguments.extend(cluster_values(Some(request.cluster)));
        let [incarnation, token] = rank_values(mark.rank());
        arguments.extend([token, incarnation, integer(mark.raised_at)]);
        arguments.extend([text(mark.raised_by), text(repair)]);
        self.alone("repair", arguments, 1, steps::repaired).await
    }

    async fn cluster(&self) -> Answer<Option<Cluster>> {
        let read = self.rows(steps::all_clusters()).await?;
        Ok(read.into_iter().next().flatten())
    }

    async fn recover(
        &self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Answer<Enrolled> {
        let marks = steps::mark_columns(marks).map_err(|error| self.explain(error))?;
        let mut arguments = Vec::from(cluster_values(seen));
        arguments.extend(cluster_values(Some(cluster)));
        arguments.extend(marks);
        self.alone("recover", arguments, RECOVERY, steps::enrolled)
            .await
    }

    /// A row for each scope, timed by the server's clock. If that clock is set forward, a lease lapses early.
    async fn lease(&self, scope: &Scope, holder: LeaseId, step: LeaseStep) -> Answer<Leased> {
        let time_us = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let arguments = [
            text(scope.to_string()),
            text(holder.to_string()),
            value(Type::BOOL, matches!(step, LeaseStep::Acquire(_))),
            integer(step.time().map(time_us)),
        ];
        let is_held = self.alone("lease", arguments, 1, steps::is_true).await?;
        Ok(if is_held {
            Leased::Held
        } else {
            Leased::NotHeld
        })
    }

    async fn note_takeovers(&self, scope: &Scope, records: &[TakeoverRecord]) -> Answer<()> {
        self.note(scope, records).await
    }

    async fn takeovers(&self, of: Option<&Scope>) -> Answer<Vec<(Scope, TakeoverRecord)>> {
        self.list(of).await
    }

    fn watch(&self) -> Watch {
        self.inner.reader.watchers.watch()
    }
}
