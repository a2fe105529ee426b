//! A leader of the story: a connection that makes progress only during a call.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_postgres::error::DbError;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};
use tokio_util::sync::CancellationToken;

const STEP_LIMIT: Duration = Duration::from_secs(15);

/// A session on its own runtime, which runs only during a call. Between calls it is paused like a process in a long
/// garbage collection.
pub(super) struct DemoLeader {
    runtime: Runtime,
    client: Client,
    connection: Option<JoinHandle<Result<(), tokio_postgres::Error>>>,
    stop: CancellationToken,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error("{}: {}", .0.severity(), .0.message())]
    Refused(Box<DbError>),
    /// The connection broke without a word from the server.
    #[error("the connection broke")]
    Broken(#[source] tokio_postgres::Error),
    #[error("no answer within {STEP_LIMIT:?}")]
    TimedOut,
    #[error("interrupted")]
    Interrupted,
    #[error("cannot start a runtime")]
    Runtime(#[source] std::io::Error),
}

impl DemoLeader {
    pub(super) fn connect(login: &Config, stop: &CancellationToken) -> Result<Self, StepError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(StepError::Runtime)?;
        let connecting = bounded(stop, login.connect(NoTls));
        let (client, connection) = runtime
            .block_on(connecting)?
            .map_err(StepError::from_error)?;
        let connection = runtime.spawn(connection);
        Ok(Self {
            runtime,
            client,
            connection: Some(connection),
            stop: stop.clone(),
        })
    }

    /// Runs SQL, and returns the rows of its last result as text.
    pub(super) fn run(&mut self, sql: &str) -> Result<Vec<Vec<String>>, StepError> {
        let query = bounded(&self.stop, self.client.simple_query(sql));
        match self.runtime.block_on(query)? {
            Ok(messages) => Ok(messages.iter().filter_map(row).collect()),
            Err(error) if error.as_db_error().is_some() => Err(StepError::from_error(error)),
            Err(error) => Err(self.last_words(error)),
        }
    }

    /// The server's last error, which the library hands to the connection, not to the query.
    fn last_words(&mut self, error: tokio_postgres::Error) -> StepError {
        let Some(connection) = self.connection.take() else {
            return StepError::Broken(error);
        };
        match self.runtime.block_on(bounded(&self.stop, connection)) {
            Ok(Ok(Err(last))) => StepError::from_error(last),
            Ok(_) => StepError::Broken(error),
            Err(step) => step,
        }
    }
}

impl StepError {
    fn from_error(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(told) => Self::Refused(Box::new(told.clone())),
            None => Self::Broken(error),
        }
    }
}

fn row(message: &SimpleQueryMessage) -> Option<Vec<String>> {
    match message {
        SimpleQueryMessage::Row(row) => Some(
            (0..row.len())
                .map(|column| row.get(column).unwrap_or_default().to_owned())
                .collect(),
        ),
        _ => None,
    }
}

async fn bounded<T>(
    stop: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, StepError> {
    tokio::select! {
        result = tokio::time::timeout(STEP_LIMIT, work) => result.map_err(|_| StepError::TimedOut),
        () = stop.cancelled() => Err(StepError::Interrupted),
    }
}
