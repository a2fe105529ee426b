//! Task that runs the steps, one statement after another on one connection: group commit, and recovery from a lost
//! connection.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, error::SqlState};

use super::connection::{Arguments, ConnectionError, Purpose, StoreConnection, WENT_BACK, within};
use super::open::FORMAT;
use super::options::{Options, SCHEMA};
use super::own::Locks;
use super::steps::{self, AnswerSender, Value};
use crate::{Answer, AuthorityError, AuthorityId, Backend, Declaration, Declared};

/// Maximum steps of a statement: each holds the locks of all until the commit.
const BATCH: usize = 128;
/// Attempts for a step that loses conflicts with others.
const ATTEMPTS: u32 = 5;
/// Pauses between attempts to connect, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(super) enum Job {
    Declare(Declaration, AnswerSender<Declared>),
    Forget(Vec<Backend>, AnswerSender<()>),
    /// A step with a commit of its own: a function of the server.
    Alone(&'static str, Vec<Value>, AnswerSender<Vec<Row>>),
}

/// Factor of a call's limit: recovery may take longer.
pub(super) fn patience(function: &str) -> u32 {
    if function == "recover" { 12 } else { 1 }
}

#[derive(Default)]
pub(super) struct Backoff {
    pause: Duration,
    until: Option<Instant>,
}

impl Backoff {
    /// Waits as the last failures demand; at most a second.
    pub(super) async fn wait(&self) {
        if let Some(until) = self.until {
            tokio::time::sleep_until(until).await;
        }
    }

    pub(super) fn failed(&mut self) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.until = Some(Instant::now() + self.pause);
    }

    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }
}

pub(super) struct Worker {
    options: Options,
    place: String,
    identity: AuthorityId,
    link: Option<StoreConnection>,
    backoff: Backoff,
    /// Random number of the connection, and the steps begun on it.
    connection: i64,
    step: i64,
    /// Connection and step of the last answered step.
    answered: Option<(i64, i64)>,
    /// The store lost what it had answered. No later answer counts.
    went_back: Option<AuthorityError>,
}

impl Worker {
    pub(super) fn new(options: Options, identity: AuthorityId) -> Self {
        Self {
            place: options.to_string(),
            options,
            identity,
            link: None,
            backoff: Backoff::default(),
            connection: 0,
            step: 0,
            answered: None,
            went_back: None,
        }
    }

    /// Serves until every handle is gone and the queue is empty.
    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut next = None;
        while let Some(job) = match next.take() {
            Some(job) => Some(job),
            None => queue.recv().await,
        } {
            match job {
                // Without a caller the step can be skipped.
                Job::Alone(.., reply) if reply.is_closed() => {}
                Job::Alone(function, arguments, reply) => {
                    let _ = reply.send(self.step(function, &arguments).await);
                }
                job => {
                    let mut batch = Batch::default();
                    next = batch.fill(job, &mut queue);
                    self.together(batch).await;
                }
            }
        }
    }

    async fn together(&mut self, batch: Batch) {
        let (declarations, forgets) = (batch.declarations, batch.forgets);
        if batch.declares.is_empty() && forgets.is_empty() {
            return;
        }
        let columns = steps::together(&declarations, batch.gone);
        let rows = self.step("declare_and_forget", &columns).await;
        let answers = rows.and_then(|rows| {
            let answers: Result<Vec<(usize, Declared)>, _> = rows.iter().map(steps::read).collect();
            answers.map_err(|error| error.into_authority(&self.place))
        });
        let done = answers.as_ref().map(|_| ()).map_err(Clone::clone);
        if let Err(error) = &done {
            let steps = declarations.len() + forgets.len();
            tracing::warn!(%error, steps, "authority: steps failed");
        }
        let mut replies: Vec<_> = batch.declares.into_iter().map(Some).collect();
        for (place, answer) in answers.into_iter().flatten() {
            if let Some(reply) = replies.get_mut(place).and_then(Option::take) {
                let _ = reply.send(Ok(answer));
            }
        }
        for reply in replies.into_iter().flatten() {
            let missing = ConnectionError::Record("a declaration without an answer".into());
            let missing = missing.into_authority(&self.place);
            let _ = reply.send(Err(done.clone().err().unwrap_or(missing)));
        }
        for reply in forgets {
            let _ = reply.send(done.clone());
        }
    }

    /// Runs a step: one statement, one transaction.
    async fn step(&mut self, function: &str, own: &[Value]) -> Answer<Vec<Row>> {
        if let Some(error) = &self.went_back {
            return Err(error.clone());
        }
        self.connected().await.map_err(|error| self.failed(error))?;
        let bound = self.options.timeout * patience(function);
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.attempt(function, own, bound).await {
                Ok(rows) => return Ok(rows),
                // The server undid the step.
                Err(error) if error.gave_way() && attempt < ATTEMPTS => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    async fn attempt(
        &mut self,
        function: &str,
        own: &[Value],
        bound: Duration,
    ) -> Result<Vec<Row>, ConnectionError> {
        let identity = self.identity.to_bytes().to_vec();
        let (connection, step) = (self.connection, self.step + 1);
        self.step = step;
        let mut arguments: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&FORMAT, Type::INT4),
            (&identity, Type::BYTEA),
            (&connection, Type::INT8),
            (&step, Type::INT8),
        ];
        arguments.extend(own.iter().map(|(value, of)| (&**value as _, of.clone())));
        let link = self.link.as_ref();
        let link = link.ok_or_else(|| ConnectionError::Broken("not connected".into()))?;
        let sql = steps::call(function, &arguments);
        let locks = match function {
            "enrol" | "recover" => Locks::Cluster,
            _ => Locks::Step,
        };
        let rows = within(bound, link.own(bound, locks, &sql, &arguments)).await?;
        self.answered = Some((connection, step));
        Ok(rows)
    }

    pub(super) async fn connected(&mut self) -> Result<(), ConnectionError> {
        if self.link.as_ref().is_some_and(|link| !link.is_closed()) {
            return Ok(());
        }
        self.link = None;
        self.backoff.wait().await;
        let connected = self.connect().await;
        match &connected {
            Ok(()) => self.backoff.succeeded(),
            Err(_) => self.backoff.failed(),
        }
        connected
    }

    async fn connect(&mut self) -> Result<(), ConnectionError> {
        let link = StoreConnection::connect(&self.options, Purpose::Steps).await?;
        let connection: i64 = rand::random();
        let identity = self.identity.to_bytes().to_vec();
        let (before, steps) = self.answered.unzip();
        let arguments: [(&(dyn ToSql + Sync), Type); 5] = [
            (&FORMAT, Type::INT4),
            (&identity, Type::BYTEA),
            (&connection, Type::INT8),
            (&before, Type::INT8),
            (&steps, Type::INT8),
        ];
        let bound = self.options.timeout;
        let sql = steps::call("hello", &arguments);
        within(bound, link.own(bound, Locks::Step, &sql, &arguments)).await?;
        // From here on the new row must stay. The old one may go.
        (self.connection, self.step) = (connection, 0);
        self.answered = Some((connection, 0));
        if before.is_some() {
            let done = format!("DELETE FROM {SCHEMA}.connections WHERE id = $1");
            let arguments: &Arguments<'_> = &[(&before, Type::INT8)];
            within(bound, link.own(bound, Locks::Step, &done, arguments)).await?;
        }
        self.link = Some(link);
        Ok(())
    }

    fn failed(&mut self, error: ConnectionError) -> AuthorityError {
        let went_back = error.code().map(SqlState::code) == Some(WENT_BACK);
        if error.ends_connection() {
            self.link = None;
        }
        let error = error.into_authority(&self.place);
        if went_back {
            self.went_back = Some(error.clone());
        }
        error
    }
}

/// Steps of one statement: declarations first, then removals; and who waits for them.
#[derive(Default)]
struct Batch {
    declarations: Vec<Declaration>,
    declares: Vec<AnswerSender<Declared>>,
    /// Ordered, so that two proxies that remove the same sessions cannot deadlock.
    gone: BTreeSet<Backend>,
    forgets: Vec<AnswerSender<()>>,
}

impl Batch {
    /// Takes `first` and the queued steps. Returns a step that must come after this batch.
    fn fill(&mut self, first: Job, queue: &mut mpsc::Receiver<Job>) -> Option<Job> {
        let mut next = Some(first);
        while let Some(job) = next.take().or_else(|| queue.try_recv().ok()) {
            match job {
                Job::Declare(_, reply) if reply.is_closed() => {}
                Job::Forget(_, reply) if reply.is_closed() => {}
                // An earlier `forget` of the same session must come before this declaration.
                Job::Declare(declaration, reply) if !self.gone.contains(&declaration.backend) => {
                    self.declarations.push(declaration);
                    self.declares.push(reply);
                }
                Job::Forget(gone, reply) => {
                    self.gone.extend(gone);
                    self.forgets.push(reply);
                }
                later => return Some(later),
            }
            if self.declares.len() + self.forgets.len() >= BATCH {
                break;
            }
        }
        None
    }
}
