//! The control connection: made, prepared, watched and made again.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{AuthorityId, Backend};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::error::{DbError, Severity};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};
use tokio_util::sync::CancellationToken;

use super::cluster_lock::{self, StoreLock};
use super::error::{ControlError, StartError};

/// The first and the longest pause between attempts to connect again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A statement without an answer for this long means that the connection is dead.
const DEAD_AFTER: Duration = Duration::from_secs(1);
/// A connection is made and prepared within this time, or within the timeout of takeovers if that is longer.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How often a lock that somebody holds is tried again at start.
const LOCK_RETRY: Duration = Duration::from_millis(200);
/// A pause after a connection was lost under a statement.
const RETRY: Duration = Duration::from_millis(10);

/// `(pid, backend_start)` of a row of pg_stat_activity, as this crate writes it.
pub(super) const STARTED_US: &str =
    "(extract(epoch FROM a.backend_start) * 1000000)::pg_catalog.int8";

/// How to make a control connection.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) config: Config,
    pub(super) timeout: Duration,
    pub(super) authority: AuthorityId,
    pub(super) lock: StoreLock,
    /// How long the first connection waits for a lock that somebody holds.
    pub(super) lock_wait: Duration,
}

/// The control connection, for all who use it.
#[derive(Debug, Clone)]
pub(super) struct Control {
    link: watch::Receiver<Link>,
}

#[derive(Debug, Clone)]
enum Link {
    Up(Arc<Session>),
    Down(Arc<str>),
}

#[derive(Debug)]
struct Session {
    client: Client,
    connection: AbortHandle,
}

/// A connection that may serve: it has the rights and the lock.
struct Established {
    session: Arc<Session>,
    connection: JoinHandle<()>,
    backend: Backend,
}

impl Control {
    /// Connects, and keeps connected until `cancel`.
    pub(super) async fn start(plan: Plan, cancel: CancellationToken) -> Result<Self, StartError> {
        let give_up = Instant::now() + plan.lock_wait;
        let first = loop {
            match establish(&plan, None).await {
                Err(StartError::OtherAuthority { .. } | StartError::Taken { .. })
                    if Instant::now() < give_up =>
                {
                    // The backend of a proxy that was killed may take a moment to notice.
                    sleep(LOCK_RETRY).await;
                }
                other => break other?,
            }
        };
        let (link, control) = watch::channel(Link::Up(Arc::clone(&first.session)));
        tokio::spawn(supervise(plan, first, link, cancel));
        Ok(Self { link: control })
    }

    /// Runs one statement in a transaction of its own. Waits for the connection where it is down, and
    /// runs the statement again where the connection is lost under it: so it must be one that can be
    /// repeated.
    pub(super) async fn query(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
        deadline: Instant,
    ) -> Result<Vec<Row>, ControlError> {
        loop {
            let session = self.session(deadline).await?;
            let began = Instant::now();
            match timeout_at(deadline, session.client.query_typed(sql, params)).await {
                Ok(result) => match result.map_err(ControlError::from) {
                    Err(ControlError::Lost) => {}
                    other => return other,
                },
                Err(_) => {
                    // A caller who came late does not prove the connection dead.
                    if began.elapsed() >= DEAD_AFTER {
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

    async fn session(&self, deadline: Instant) -> Result<Arc<Session>, ControlError> {
        let mut link = self.link.clone();
        loop {
            let why = match &*link.borrow_and_update() {
                Link::Up(session) if !session.client.is_closed() => return Ok(Arc::clone(session)),
                Link::Up(_) => "it was lost".into(),
                Link::Down(why) => Arc::clone(why),
            };
            match timeout_at(deadline, link.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(ControlError::Down("the proxy is shutting down".into())),
                Err(_) => return Err(ControlError::Down(why)),
            }
        }
    }
}

/// Waits for the connection to end and makes a new one, for ever.
async fn supervise(
    plan: Plan,
    first: Established,
    link: watch::Sender<Link>,
    cancel: CancellationToken,
) {
    let mut current = first;
    loop {
        let Established {
            connection,
            backend,
            ..
        } = current;
        tokio::select! {
            () = cancel.cancelled() => {
                // Lets go of the connection, and so of the lock.
                link.send_replace(Link::Down("the proxy is shutting down".into()));
                return;
            }
            _ = connection => {}
        }
        tracing::warn!("the control connection was lost; takeovers wait until it is back");
        link.send_replace(Link::Down("it was lost".into()));
        let mut pause = BACKOFF.0;
        current = loop {
            let attempt = tokio::select! {
                () = cancel.cancelled() => return,
                attempt = establish(&plan, Some(backend)) => attempt,
            };
            match attempt {
                Ok(established) => break established,
                Err(error) => {
                    tracing::warn!(%error, "no control connection");
                    link.send_replace(Link::Down(error.to_string().into()));
                }
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(BACKOFF.1);
        };
        tracing::info!("the control connection is back");
        link.send_replace(Link::Up(Arc::clone(&current.session)));
    }
}

async fn establish(plan: &Plan, previous: Option<Backend>) -> Result<Established, StartError> {
    let attempt = async {
        let (client, connection) = plan
            .config
            .connect(NoTls)
            .await
            .map_err(|e| StartError::Connect(ControlError::Server(e.into())))?;
        let connection = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!(%error, "control connection");
            }
        });
        let session = Arc::new(Session {
            client,
            connection: connection.abort_handle(),
        });
        let backend = prepare(plan, &session.client, previous).await?;
        Ok(Established {
            session,
            connection,
            backend,
        })
    };
    match timeout(plan.timeout.max(CONNECT_WITHIN), attempt).await {
        Ok(established) => established,
        Err(_) => Err(StartError::Connect(ControlError::Timeout)),
    }
}

/// Settings, rights, and the lock. A failed preparation drops the client, which ends the session.
async fn prepare(
    plan: &Plan,
    client: &Client,
    previous: Option<Backend>,
) -> Result<Backend, StartError> {
    let timeout_ms = plan.timeout.as_millis().to_string();
    // Through pg_settings, because older servers do not know all of them.
    let settings = "SELECT pg_catalog.set_config(s.name, v.value, false) FROM (VALUES \
        ('search_path', 'pg_catalog'), ('statement_timeout', $1), ('idle_session_timeout', '0'), \
        ('idle_in_transaction_session_timeout', '0'), ('default_transaction_read_only', 'off')) \
        AS v(name, value) JOIN pg_catalog.pg_settings s ON s.name = v.name";
    client
        .query_typed(settings, &[(&timeout_ms, Type::TEXT)])
        .await
        .map_err(control_error)?;
    let backend = check_rights(client).await?;
    if let Some(previous) = previous {
        // Our own lost session may still hold the lock, if the server has not noticed.
        end_previous(client, previous)
            .await
            .map_err(StartError::Control)?;
    }
    cluster_lock::take(client, plan.authority, plan.lock).await?;
    Ok(backend)
}

/// Checks the rights and returns who we are.
async fn check_rights(client: &Client) -> Result<Backend, StartError> {
    let sql = format!(
        "SELECT pg_catalog.pg_is_in_recovery(), current_user::pg_catalog.text, \
         pg_catalog.quote_ident(current_user), r.rolsuper, \
         pg_catalog.pg_has_role(current_user, 'pg_signal_backend', 'USAGE'), \
         pg_catalog.pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), \
         a.pid, {STARTED_US} \
         FROM pg_catalog.pg_roles r, pg_catalog.pg_stat_activity a \
         WHERE r.rolname = current_user AND a.pid = pg_catalog.pg_backend_pid()"
    );
    let rows = client.query_typed(&sql, &[]).await.map_err(control_error)?;
    let row = rows
        .first()
        .ok_or(StartError::Control(ControlError::Lost))?;
    let flag = |column| answer::<bool>(row, column).map_err(StartError::Control);
    if flag(0)? {
        return Err(StartError::Standby);
    }
    let missing: Vec<&str> = [(4, "pg_signal_backend"), (5, "pg_read_all_stats")]
        .into_iter()
        .map(|(column, role)| Ok((!flag(3)? && !flag(column)?).then_some(role)))
        .filter_map(Result::transpose)
        .collect::<Result<_, StartError>>()?;
    if !missing.is_empty() {
        let role = answer(row, 1).map_err(StartError::Control)?;
        let quoted: String = answer(row, 2).map_err(StartError::Control)?;
        let grant = format!("GRANT {} TO {quoted}", missing.join(", "));
        return Err(StartError::Rights {
            role,
            missing: missing.join(" and "),
            grant,
        });
    }
    let pid = answer(row, 6).map_err(StartError::Control)?;
    let started_us = answer(row, 7).map_err(StartError::Control)?;
    Ok(Backend { pid, started_us })
}

async fn end_previous(client: &Client, previous: Backend) -> Result<(), ControlError> {
    let sql = format!(
        "SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a \
         WHERE a.pid = $1 AND {STARTED_US} = $2"
    );
    let params: [(&(dyn ToSql + Sync), Type); 2] = [
        (&previous.pid, Type::INT4),
        (&previous.started_us, Type::INT8),
    ];
    client.query_typed(&sql, &params).await?;
    Ok(())
}

/// Reads one column of an answer.
pub(super) fn answer<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, ControlError> {
    row.try_get(column)
        .map_err(|e| ControlError::Answer(e.into()))
}

fn control_error(error: tokio_postgres::Error) -> StartError {
    StartError::Control(error.into())
}

impl From<tokio_postgres::Error> for ControlError {
    fn from(error: tokio_postgres::Error) -> Self {
        let severity = error.as_db_error().and_then(DbError::parsed_severity);
        // FATAL and PANIC end the session: somebody terminated it, or the server stops.
        if error.is_closed() || matches!(severity, Some(Severity::Fatal | Severity::Panic)) {
            Self::Lost
        } else {
            Self::Server(error.into())
        }
    }
}
