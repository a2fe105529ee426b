//! The control connection as its users share it: asked, watched and replaced.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::Cluster;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row};
use tokio_util::sync::CancellationToken;

use super::connection::{ControlConfig, ControlConnection, Established, Primary, establish};
use super::control_error::ControlError;
use super::error::StartError;
use super::hosts::HostAddress;
use super::patrol::Patrol;
use super::primary_term::PrimaryTerms;
use super::spawn_until;

/// The first and the longest pause between attempts to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));
/// A statement without an answer for this long means that the connection is dead.
const DEAD_AFTER: Duration = Duration::from_secs(1);
/// Interval at which a held lock is tried again at the start.
const LOCK_RETRY: Duration = Duration::from_millis(200);
/// Pause after a connection was lost during a statement.
const RETRY: Duration = Duration::from_millis(10);

/// `backend_start` of a row `a` of pg_stat_activity, in microseconds, as this crate writes it.
pub const STARTED_US: &str = "(extract(epoch FROM a.backend_start) * 1000000)::pg_catalog.int8";

/// `system_identifier` without the sign that PostgreSQL shows it with.
pub const SYSTEM_IDENTIFIER: &str =
    "system_identifier + CASE WHEN system_identifier < 0 THEN 18446744073709551616 ELSE 0 END";

/// The control connection, shared by all its users.
#[derive(Debug, Clone)]
pub(super) struct Control {
    link: watch::Receiver<ControlState>,
    primary_terms: Arc<PrimaryTerms>,
    /// Signals that an address seems to lead to another server.
    doubt: Arc<Notify>,
    /// Time without an answer after which the connection is given up.
    dead_after: Duration,
}

#[derive(Debug, Clone)]
enum ControlState {
    Up(Arc<ControlConnection>),
    Down(Arc<str>),
}

impl ControlState {
    fn primary(&self) -> Option<Primary> {
        match self {
            Self::Up(session) if !session.client.is_closed() => Some(session.primary.clone()),
            Self::Up(_) | Self::Down(_) => None,
        }
        .filter(|primary| !primary.term.is_over())
    }
}

#[derive(Clone, Copy)]
enum Request<'a> {
    Statement(&'a str, &'a [(&'a (dyn ToSql + Sync), Type)]),
    Script(&'a str),
}

impl Request<'_> {
    async fn send(self, client: &Client) -> Result<Vec<Row>, tokio_postgres::Error> {
        match self {
            Self::Statement(sql, params) => client.query_typed(sql, params).await,
            Self::Script(script) => client.batch_execute(script).await.map(|()| Vec::new()),
        }
    }
}

impl Control {
    /// Connects, and keeps connected until `cancel`.
    pub(super) async fn start(
        config: ControlConfig,
        cancel: CancellationToken,
    ) -> Result<(Self, Cluster), StartError> {
        let give_up = Instant::now() + config.options.lock_wait;
        let mut waits = false;
        let first = loop {
            match establish(&config, None).await {
                Err(error) if error.may_pass() && Instant::now() < give_up => {
                    if !waits {
                        let within = config.options.lock_wait;
                        tracing::warn!(%error, ?within, "waiting for the cluster");
                    }
                    waits = true;
                    sleep(LOCK_RETRY).await;
                }
                other => break other?,
            }
        };
        let cluster = first.session.cluster;
        let (link, control) = watch::channel(ControlState::Up(Arc::clone(&first.session)));
        let control = Self {
            link: control,
            primary_terms: Arc::clone(&config.primary_terms),
            doubt: Arc::default(),
            dead_after: DEAD_AFTER.min(config.options.timeout / 2),
        };
        let patrol = Patrol::new(config.options.control.clone(), control.clone());
        spawn_until(&cancel, patrol.run(Arc::clone(&control.doubt)));
        tokio::spawn(async move {
            let supervising = supervise(config, first, &link);
            cancel.run_until_cancelled(supervising).await;
            // Closes the connection, and so releases the lock.
            link.send_replace(ControlState::Down("the proxy is shutting down".into()));
        });
        Ok((control, cluster))
    }

    /// Runs one statement in a transaction of its own. Waits while the connection is down, and repeats the statement
    /// if the connection is lost during it. So the statement must be repeatable.
    pub(super) async fn query(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
        deadline: Instant,
    ) -> Result<Vec<Row>, ControlError> {
        let answered = self.query_on_cluster(sql, params, deadline).await;
        answered.map(|(rows, _)| rows)
    }

    /// The same for rows whose columns are named as the fields of their type.
    pub(super) async fn rows<T: DeserializeOwned>(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
        deadline: Instant,
    ) -> Result<Vec<T>, ControlError> {
        let rows = self.query(&as_json(sql), params, deadline).await?;
        rows.iter().map(read).collect()
    }

    /// Like [`Self::query`], for several statements in one message, which are one transaction.
    pub(super) async fn run(&self, script: &str, deadline: Instant) -> Result<(), ControlError> {
        self.ask(Request::Script(script), deadline).await.map(drop)
    }

    /// Like [`Self::query`], with the cluster that has answered: a new connection may lead to the successor of a
    /// deposed primary.
    pub(super) async fn query_on_cluster(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
        deadline: Instant,
    ) -> Result<(Vec<Row>, Cluster), ControlError> {
        self.ask(Request::Statement(sql, params), deadline).await
    }

    async fn ask(
        &self,
        request: Request<'_>,
        deadline: Instant,
    ) -> Result<(Vec<Row>, Cluster), ControlError> {
        loop {
            let session = self.session(deadline).await?;
            let began = Instant::now();
            match timeout_at(deadline, request.send(&session.client)).await {
                Ok(result) => match result.map_err(ControlError::from) {
                    Err(ControlError::Lost) => {}
                    other => return other.map(|rows| (rows, session.cluster)),
                },
                Err(_) => {
                    // A caller that came late does not prove the connection dead.
                    if began.elapsed() >= self.dead_after {
                        session.connection.abort();
                    }
                    return Err(ControlError::Timeout);
                }
            }
            if Instant::now() + RETRY >= deadline {
                return Err(ControlError::Lost);
            }
            // The session may not know yet that it is closed.
            sleep(RETRY).await;
        }
    }

    /// Cluster of the connection, while it is up.
    pub(super) fn cluster(&self) -> Option<Cluster> {
        self.status().map(|(_, cluster)| cluster)
    }

    /// Whether the cluster keeps a witness of the marks, and which cluster that is.
    pub(super) async fn has_witness(
        &self,
        deadline: Instant,
    ) -> Result<(bool, Cluster), ControlError> {
        let session = self.session(deadline).await?;
        Ok((session.has_witness, session.cluster))
    }

    /// Replaces the connection, so that the authority decides again whether its cluster is the one on record.
    pub(super) fn renew(&self) {
        if let ControlState::Up(session) = &*self.link.borrow() {
            session.connection.abort();
        }
    }

    /// Notes the cluster on record. Sessions of an older server are ended.
    pub(super) fn note_record(&self, recorded: Cluster) {
        self.primary_terms.note(recorded);
    }

    /// Requests a look at the servers: an address may lead to another one.
    pub(super) fn look_again(&self) {
        self.doubt.notify_one();
    }

    /// Place and cluster of the primary, while the connection is up.
    pub(super) fn status(&self) -> Option<(HostAddress, Cluster)> {
        match &*self.link.borrow() {
            ControlState::Up(session) => Some((session.primary.place, session.cluster)),
            ControlState::Down(_) => None,
        }
    }

    pub(super) fn primary(&self) -> Option<Primary> {
        self.link.borrow().primary()
    }

    pub(super) async fn find_primary(&self) -> Option<Primary> {
        let mut link = self.link.clone();
        let found = link.wait_for(|link| link.primary().is_some()).await;
        found.ok().and_then(|link| link.primary())
    }

    pub(super) fn why_down(&self) -> Arc<str> {
        match &*self.link.borrow() {
            ControlState::Up(_) => "it has just changed".into(),
            ControlState::Down(why) => Arc::clone(why),
        }
    }

    async fn session(&self, deadline: Instant) -> Result<Arc<ControlConnection>, ControlError> {
        let mut link = self.link.clone();
        loop {
            let why = match &*link.borrow_and_update() {
                ControlState::Up(session) if !session.client.is_closed() => {
                    return Ok(Arc::clone(session));
                }
                ControlState::Up(_) => "it was lost".into(),
                ControlState::Down(why) => Arc::clone(why),
            };
            match timeout_at(deadline, link.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(ControlError::Down("the proxy is shutting down".into())),
                Err(_) => return Err(ControlError::Down(why)),
            }
        }
    }
}

/// Waits for the connection to end and makes a new one, forever.
async fn supervise(config: ControlConfig, first: Established, link: &watch::Sender<ControlState>) {
    let mut current = first;
    loop {
        let backend = current.session.backend;
        drop(current.session);
        let _ended = current.connection.await;
        config.options.meters.control_lost.inc();
        tracing::warn!("the control connection was lost; takeovers wait until it is back");
        link.send_replace(ControlState::Down("it was lost".into()));
        let mut pause = BACKOFF.0;
        let mut told = String::new();
        current = loop {
            match establish(&config, Some(backend)).await {
                Ok(established) => break established,
                Err(error) => {
                    let why = error.to_string();
                    link.send_replace(ControlState::Down(why.as_str().into()));
                    // Once for each reason, since there are two attempts a second.
                    if why != told {
                        tracing::warn!(%error, "there is no control connection");
                        told = why;
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        };
        link.send_replace(ControlState::Up(Arc::clone(&current.session)));
    }
}

/// Reads rows whose columns are named as the fields of their type.
pub async fn rows<T: DeserializeOwned>(
    client: &Client,
    sql: &str,
    params: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<T>, ControlError> {
    let rows = client.query_typed(&as_json(sql), params).await?;
    rows.iter().map(read).collect()
}

/// The same for a statement with one row.
pub async fn row<T: DeserializeOwned>(client: &Client, sql: &str) -> Result<T, ControlError> {
    read(&client.query_typed_one(&as_json(sql), &[]).await?)
}

fn as_json(sql: &str) -> String {
    format!("SELECT pg_catalog.row_to_json(q)::pg_catalog.text FROM ({sql}) q")
}

fn read<T: DeserializeOwned>(row: &Row) -> Result<T, ControlError> {
    serde_json::from_str(answer(row, 0)?).map_err(|error| ControlError::Answer(error.into()))
}

/// Reads one column of a row.
pub fn answer<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, ControlError> {
    row.try_get(column)
        .map_err(|e| ControlError::Answer(e.into()))
}
