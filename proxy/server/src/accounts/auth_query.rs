//! Verifiers from PostgreSQL, over a separate connection: clients that are not authenticated cause these queries, and
//! takeovers must not wait for them.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use pgpalisade_authority::owned::NO_TIMEOUTS;
use pgpalisade_logins::{Shapes, Verifier};
use pgpalisade_tls::{Login, Secret};
use tokio::sync::Mutex;
use tokio::task::JoinError;
use tokio_postgres::error::{DbError, Severity};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::timers::Timers;

/// Time limit for a connection, and for a query.
const WITHIN: Duration = Duration::from_secs(5);

const APPLICATION_NAME: &str = "pgpalisade auth";

/// Names in the query cannot be redirected (CVE-2025-12819), and the query changes nothing.
const SETTINGS: &str = "SET search_path = pg_catalog, pg_temp; SET default_transaction_read_only = on; \
                        SET statement_timeout = '4s'";

/// Iterations that PostgreSQL shows for missing users, from version 16 on:
/// <https://www.postgresql.org/docs/current/runtime-config-connection.html#GUC-SCRAM-ITERATIONS>.
const ITERATIONS: &str = "SELECT current_setting('scram_iterations', true)";

#[derive(Debug, Clone, thiserror::Error)]
pub enum LookupError {
    #[error("cannot connect for auth_query: {0}")]
    Connect(Arc<str>),
    #[error("auth_query failed: {0}")]
    Query(Arc<str>),
    #[error("the connection for auth_query has ended: {0}")]
    Lost(Arc<str>),
    #[error("auth_query did not answer within {WITHIN:?}")]
    Late,
    /// The result is not one row with two texts.
    #[error(
        "auth_query has to return at most one row with two columns of text, the user and the verifier: {0}"
    )]
    Answer(&'static str),
}

#[derive(Debug)]
pub(super) struct AuthQuery {
    login: Secret<Login>,
    sql: String,
    timers: Timers,
    connection: Mutex<QueryConnection>,
    /// Shapes of mock verifiers, from the first connection.
    shapes: OnceLock<Shapes>,
}

#[derive(Debug, Default)]
struct QueryConnection {
    client: Option<Arc<Client>>,
    /// The last failed attempt, whose waiters do not each try again.
    failed: Option<(Instant, LookupError)>,
}

impl AuthQuery {
    pub(super) fn new(login: &Secret<Login>, sql: String, timers: Timers) -> Self {
        let mut login = login.expose().clone();
        login.config.application_name(APPLICATION_NAME);
        login.config.connect_timeout(WITHIN);
        Self {
            login: Secret::new(login),
            sql,
            timers,
            connection: Mutex::default(),
            shapes: OnceLock::new(),
        }
    }

    /// Shapes of mock verifiers, known after the first lookup.
    pub(super) fn shapes(&self) -> Shapes {
        self.shapes.get().cloned().unwrap_or_default()
    }

    /// The user's verifier; `None` without one that SCRAM can use.
    pub(super) async fn verifier(&self, user: &str) -> Result<Option<Verifier>, LookupError> {
        match self.ask(user).await {
            // PostgreSQL may have been restarted since the last login.
            // A connection that a firewall has forgotten only looks open.
            Err(LookupError::Lost(_) | LookupError::Late) => self.ask(user).await,
            other => other,
        }
    }

    async fn ask(&self, user: &str) -> Result<Option<Verifier>, LookupError> {
        let client = self.client().await?;
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&user, Type::TEXT)];
        let asked = client.query_typed(&self.sql, &params);
        let error = match self.timers.timeout(WITHIN, asked).await {
            Ok(Ok(rows)) => return read(user, &rows),
            Ok(Err(error)) if client.is_closed() || is_end(&error) => {
                LookupError::Lost(words(&error))
            }
            Ok(Err(error)) => return Err(LookupError::Query(words(&error))),
            Err(_) => LookupError::Late,
        };
        let mut connection = self.connection.lock().await;
        if let Some(current) = &connection.client
            && Arc::ptr_eq(current, &client)
        {
            connection.client = None;
        }
        Err(error)
    }

    async fn client(&self) -> Result<Arc<Client>, LookupError> {
        let since = Instant::now();
        let mut connection = self.connection.lock().await;
        match (&connection.client, &connection.failed) {
            (Some(client), _) if !client.is_closed() => return Ok(Arc::clone(client)),
            (_, Some((when, error))) if *when >= since => return Err(error.clone()),
            _ => {}
        }
        connection.client = None;
        let login = self.login.clone();
        // The task goes on without this login, so it has its own bound.
        let timers = self.timers.clone();
        let connecting = self.timers.spawn(async move {
            let connected = timers.timeout(WITHIN, connect(&login)).await;
            let silence = format!("no connection within {WITHIN:?}");
            connected.unwrap_or_else(|_| Err(LookupError::Connect(silence.into())))
        });
        let connected = connecting.await;
        let ended = |error: JoinError| LookupError::Connect(error.to_string().into());
        let connected = connected.map_err(ended).flatten();
        match connected {
            Ok((client, shapes)) => {
                self.shapes.get_or_init(|| shapes);
                let client = Arc::new(client);
                connection.client = Some(Arc::clone(&client));
                Ok(client)
            }
            Err(error) => {
                connection.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }
}

async fn connect(login: &Secret<Login>) -> Result<(Client, Shapes), LookupError> {
    let connected = login.expose().connect_to_any(WITHIN).await;
    let (client, connection) =
        connected.map_err(|error| LookupError::Connect(error.to_string().into()))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::warn!(
                error = &*words(&error),
                "the connection for auth_query has failed"
            );
        }
    });
    let refused = |error| LookupError::Connect(words(&error));
    client.batch_execute(SETTINGS).await.map_err(refused)?;
    client.batch_execute(NO_TIMEOUTS).await.map_err(refused)?;
    let asked = client.query_typed(ITERATIONS, &[]).await.map_err(refused)?;
    let setting: Option<&str> = asked.first().and_then(|row| row.try_get(0).ok()?);
    let iterations = setting.and_then(|count| count.parse().ok());
    Ok((client, Shapes::of_server(iterations)))
}

fn is_end(error: &tokio_postgres::Error) -> bool {
    let severity = error.as_db_error().and_then(DbError::parsed_severity);
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

fn words(error: &tokio_postgres::Error) -> Arc<str> {
    match error.as_db_error() {
        Some(error) => format!("{} ({})", error.message(), error.code().code()).into(),
        None => pgpalisade_tls::words(error).into(),
    }
}

fn read(user: &str, rows: &[Row]) -> Result<Option<Verifier>, LookupError> {
    let row = match rows {
        [] => return Ok(None),
        [row] if row.len() == 2 => row,
        [_] => return Err(LookupError::Answer("it does not have two columns")),
        _ => return Err(LookupError::Answer("it has several rows")),
    };
    let text = |column| {
        row.try_get::<_, Option<&str>>(column)
            .map_err(|_| LookupError::Answer("a column is not text"))
    };
    let (Some(found), Some(verifier)) = (text(0)?, text(1)?) else {
        return Ok(None);
    };
    if found != user {
        return Err(LookupError::Answer("it is for another user"));
    }
    match verifier.parse() {
        Ok(verifier) => Ok(Some(verifier)),
        Err(error) => {
            tracing::info!(user, %error, "the user has no usable SCRAM verifier");
            Ok(None)
        }
    }
}
