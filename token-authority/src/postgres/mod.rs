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
mod watch;
mod worker;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::types::Type;

pub use options::Options;
pub use read::{ServerInfo, read};

use crate::record::json;
use crate::takeovers::History;
use crate::{
    Answer, Authority, AuthorityError, AuthorityId, Backend, Cluster, Declaration, Declared,
    Drained, Enrolled, LeaseId, LeaseStep, Leased, Mark, OpenError, Rank, Registered,
    RepairRequest, Repaired, Scope, TakeoverRecord, Watch,
};
use connection::ConnectionError;
use open::OpenFault;
use steps::{AnswerSender, Value, cluster_values, integer, rank_values, text, value};
use watch::StoreReader;
use worker::{Job, Worker, patience};

/// Queued steps; further callers wait to enqueue.
const QUEUE: usize = 1024;

/// Attempts to record takeovers while other proxies record theirs.
const CONFLICTS_MAX: u32 = 64;

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
    _watching: JoinSet<()>,
}

impl Postgres {
    /// Connects to the store, and creates its schema on first use. Needs a tokio runtime, which then runs its
    /// connections. Takes at most a few times the options' timeout.
    ///
    /// Errors: no connection, a standby, missing rights (with the SQL that grants them), a schema that is damaged or
    /// of another version.
    pub async fn connect(options: &Options) -> Result<Self, OpenError> {
        let connected = Self::connect_to(options.clone()).await;
        connected.map_err(|fault| fault.at(options))
    }

    async fn connect_to(options: Options) -> Result<Self, OpenFault> {
        let identity = open::open(&options).await?;
        let mut worker = Worker::new(options.clone(), identity);
        worker.connected().await?;
        let reader = Arc::new(StoreReader::new(options.clone(), identity));
        let told = reader.begin().await;
        let told = told.map_err(|error| OpenFault::unreachable(error.to_string()))?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        // Ends when the queue is closed and empty.
        tokio::spawn(worker.run(queue));
        let mut watching = JoinSet::new();
        watching.spawn(Arc::clone(&reader).run(told));
        Ok(Self {
            inner: Arc::new(Inner {
                identity,
                options,
                jobs,
                reader,
                _watching: watching,
            }),
        })
    }

    /// Sends one step to the worker and waits until it is durable.
    async fn step<T>(
        &self,
        bound: Duration,
        job: impl FnOnce(AnswerSender<T>) -> Job,
    ) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        let job = job(reply);
        let taken = async {
            let queued = self.inner.jobs.send(job).await;
            queued.map_err(|_| AuthorityError::Closed)?;
            answer.await.map_err(|_| AuthorityError::Closed)?
        };
        self.bounded(bound, taken).await
    }

    /// As `step`, for a step with a separate commit.
    async fn alone<T: DeserializeOwned>(
        &self,
        function: &'static str,
        arguments: impl Into<Vec<Value>>,
    ) -> Answer<T> {
        let (bound, arguments) = (self.bound() * patience(function), arguments.into());
        let alone = |reply| Job::Alone(function, arguments, reply);
        let rows = self.step(bound, alone).await?;
        let answer = connection::first(&rows).and_then(steps::read);
        answer.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: ConnectionError) -> AuthorityError {
        error.into_authority(&self.inner.options.to_string())
    }

    /// Limit of a call.
    fn bound(&self) -> Duration {
        self.inner.options.timeout
    }

    /// Reads all rows. Each must arrive within a call's timeout.
    async fn rows<T: DeserializeOwned>(&self, all: &str) -> Answer<Vec<T>> {
        let link = self.bounded(self.bound(), self.inner.reader.link()).await?;
        let rows = link.all(self.bound(), all).await;
        if let Err(ConnectionError::Broken(_)) = rows {
            self.inner.reader.discard(&link).await;
        }
        rows.map_err(|error| self.explain(error))
    }

    async fn bounded<T>(
        &self,
        bound: Duration,
        call: impl Future<Output = Answer<T>>,
    ) -> Answer<T> {
        timeout(bound, call).await.unwrap_or_else(|_| {
            let why = format!("{}: no answer within {bound:?}", self.inner.options);
            Err(AuthorityError::Unavailable(why))
        })
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
        self.alone("enrol", cluster).await
    }

    async fn declare(&self, declaration: &Declaration) -> Answer<Declared> {
        declaration.names_no_election()?;
        let declaration = declaration.clone();
        let declare = |reply| Job::Declare(declaration, reply);
        self.step(self.bound(), declare).await
    }

    async fn drained(&self, scope: &Scope, rank: Rank, gone: &[Backend]) -> Answer<Drained> {
        let mut arguments = vec![text(scope.to_string())];
        arguments.extend(rank_values(rank));
        arguments.extend(steps::backends(gone.iter().copied()));
        Ok(Drained::of(self.alone("drained", arguments).await?))
    }

    async fn forget(&self, gone: &[Backend]) -> Answer<()> {
        let gone = gone.to_vec();
        let forget = |reply| Job::Forget(gone, reply);
        self.step(self.bound(), forget).await
    }

    async fn sessions(&self) -> Answer<Vec<(Scope, Registered)>> {
        self.rows(&steps::all_sessions()).await
    }

    async fn marks(&self) -> Answer<Vec<(Scope, Mark)>> {
        self.rows(&steps::all_marks()).await
    }

    async fn mark(&self, scope: &Scope) -> Answer<Option<Mark>> {
        // Scope names need no quoting.
        let sql = format!("{} WHERE m.scope = '{scope}'", steps::all_marks());
        let read: Vec<(Scope, Mark)> = self.rows(&sql).await?;
        Ok(read.into_iter().next().map(|(_, mark)| mark))
    }

    async fn repair(&self, request: &RepairRequest) -> Answer<Repaired> {
        let mark = Mark::repaired(request)?;
        let mut arguments = vec![text(request.scope.to_string())];
        arguments.extend(rank_values(request.expected));
        arguments.extend(cluster_values(Some(request.cluster)));
        let [incarnation, token] = rank_values(mark.rank());
        arguments.extend([token, incarnation, integer(mark.raised_at)]);
        arguments.extend([text(mark.raised_by), text(json(&request.repair))]);
        self.alone("repair", arguments).await
    }

    async fn cluster(&self) -> Answer<Option<Cluster>> {
        let read: Vec<Option<Cluster>> = self.rows(&steps::all_clusters()).await?;
        Ok(read.into_iter().next().flatten())
    }

    async fn recover(
        &self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Answer<Enrolled> {
        let mut arguments = Vec::from(cluster_values(seen));
        arguments.extend(cluster_values(Some(cluster)));
        arguments.extend(steps::mark_columns(marks));
        self.alone("recover", arguments).await
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
        Ok(if self.alone("lease", arguments).await? {
            Leased::Held
        } else {
            Leased::NotHeld
        })
    }

    async fn note_takeovers(&self, scope: &Scope, records: &[TakeoverRecord]) -> Answer<()> {
        for _ in 0..CONFLICTS_MAX {
            let read: Vec<(Scope, String)> = self.rows(&steps::histories(Some(scope))).await?;
            let seen = read.into_iter().next().map(|(_, json)| json);
            let known = seen
                .as_ref()
                .map(|json| History::read(scope, json.as_bytes()));
            let mut history = known.unwrap_or_default();
            history.note(records);
            let arguments = [text(scope.to_string()), text(seen), text(json(&history))];
            if self.alone("note_takeover", arguments).await? {
                return Ok(());
            }
        }
        let why = format!("the takeovers of scope {scope} kept changing");
        Err(AuthorityError::Unavailable(why))
    }

    async fn takeovers(&self, of: Option<&Scope>) -> Answer<Vec<(Scope, TakeoverRecord)>> {
        Ok(steps::takeovers(self.rows(&steps::histories(of)).await?))
    }

    fn watch(&self) -> Watch {
        self.inner.reader.watchers.watch()
    }
}
