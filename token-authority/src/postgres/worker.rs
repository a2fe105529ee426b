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
use super::steps::{self, AnswerSender, Declare, Forget, Value};
use crate::{AuthorityError, AuthorityId, Backend};

/// Maximum steps of a statement: each holds the locks of all until the commit.
const BATCH: usize = 128;
/// Attempts for a step that loses conflicts with others.
const ATTEMPTS: u32 = 5;
/// Pauses between attempts to connect, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(super) enum Job {
    Declare(Declare),
    Forget(Forget),
    Alone(Alone),
}

/// A step with a commit of its own.
pub(super) struct Alone {
    /// Of the server.
    pub(super) function: &'static str,
    pub(super) arguments: Vec<Value>,
    /// Factor of a call's limit.
    pub(super) patience: u32,
    pub(super) reply: AnswerSender<Vec<Row>>,
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
        loop {
            let job = match next.take() {
                Some(job) => job,
                None => match queue.recv().await {
                    Some(job) => job,
                    None => return,
                },
            };
            match job {
                Job::Declare(_) | Job::Forget(_) => {
                    let mut batch = Batch::default();
                    next = batch.fill(job, &mut queue);
                    self.together(batch).await;
                }
                Job::Alone(step) => self.alone(step).await,
            }
        }
    }

    async fn together(&mut self, batch: Batch) {
        let (declares, forgets) = (batch.declares, batch.forgets);
        if declares.is_empty() && forgets.is_empty() {
            return;
        }
        let columns = steps::together(&declares, batch.gone);
        let rows = self.step("declare_and_forget", &columns, 1).await;
        let answers = rows.and_then(|rows| {
            let answers: Result<Vec<_>, _> = rows.iter().map(steps::declared).collect();
            answers.map_err(|error| error.into_authority(&self.place))
        });
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => {
                let steps = declares.len() + forgets.len();
                tracing::warn!(%error, steps, "authority: steps failed");
                for declare in declares {
                    let _ = declare.reply.send(Err(error.clone()));
                }
                for forget in forgets {
                    let _ = forget.reply.send(Err(error.clone()));
                }
                return;
            }
        };
        let mut replies: Vec<_> = declares.into_iter().map(|d| Some(d.reply)).collect();
        for (place, answer) in answers {
            if let Some(reply) = replies.get_mut(place).and_then(Option::take) {
                let _ = reply.send(Ok(answer));
            }
        }
        for reply in replies.into_iter().flatten() {
            let error = ConnectionError::Record("a declaration without an answer".into());
            let _ = reply.send(Err(error.into_authority(&self.place)));
        }
        for forget in forgets {
            let _ = forget.reply.send(Ok(()));
        }
    }

    async fn alone(&mut self, step: Alone) {
        // Without a caller the step can be skipped.
        if !step.reply.is_closed() {
            let rows = self.step(step.function, &step.arguments, step.patience);
            let _ = step.reply.send(rows.await);
        }
    }

    /// Runs a step: one statement, one transaction. `patience` multiplies a call's limit.
    async fn step(
        &mut self,
        function: &str,
        own: &[Value],
        patience: u32,
    ) -> Result<Vec<Row>, AuthorityError> {
        if let Some(error) = &self.went_back {
            return Err(error.clone());
        }
        self.connected().await.map_err(|error| self.failed(error))?;
        let bound = self.options.timeout() * patience;
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
        match self.connect().await {
            Ok(()) => {
                self.backoff.succeeded();
                Ok(())
            }
            Err(error) => {
                self.backoff.failed();
                Err(error)
            }
        }
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
        let bound = self.options.timeout();
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

/// Steps of one statement: declarations first, then removals.
#[derive(Default)]
struct Batch {
    declares: Vec<Declare>,
    forgets: Vec<Forget>,
    /// Ordered, so that two proxies that remove the same sessions cannot deadlock.
    gone: BTreeSet<Backend>,
}

impl Batch {
    /// Takes `first` and the queued steps. Returns a step that must come after this batch.
    fn fill(&mut self, first: Job, queue: &mut mpsc::Receiver<Job>) -> Option<Job> {
        let mut next = Some(first);
        while let Some(job) = next.take().or_else(|| queue.try_recv().ok()) {
            match job {
                Job::Declare(declare) if declare.reply.is_closed() => {}
                Job::Forget(forget) if forget.reply.is_closed() => {}
                // An earlier `forget` of the same session must come before this declaration.
                Job::Declare(declare) if self.gone.contains(&declare.declaration.backend) => {
                    return Some(Job::Declare(declare));
                }
                Job::Declare(declare) => self.declares.push(declare),
                Job::Forget(forget) => {
                    self.gone.extend(&forget.gone);
                    self.forgets.push(forget);
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
