//! A leader: one session, with answers within bounds.

use std::future::Future;
use std::time::Duration;

use pgpalisade_tls::{ClientSession, ConnectError, Login, words};
use tokio_postgres::error::DbError;
use tokio_postgres::{Config, Error, SimpleQueryMessage};
use tokio_util::sync::CancellationToken;

/// Bound for one step.
const STEP_LIMIT: Duration = Duration::from_secs(15);

pub(super) struct DemoLeader {
    session: ClientSession,
    stop: CancellationToken,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error("{}: {}", .0.severity(), .0.message())]
    Refused(Box<DbError>),
    #[error("{0}")]
    Failed(String),
    #[error("interrupted")]
    Interrupted,
}

impl DemoLeader {
    pub(super) async fn connect(
        login: Config,
        stop: &CancellationToken,
    ) -> Result<Self, StepError> {
        let opened = bounded(stop, Login::from(login).open()).await?;
        let session = opened.map_err(|error| match error {
            ConnectError::Server(error) => StepError::of(&error),
            ConnectError::Files(error) => StepError::Failed(error.to_string()),
        })?;
        let stop = stop.clone();
        Ok(Self { session, stop })
    }

    /// Rows of the answer. If the connection ended meanwhile, the error is the server's last word.
    pub(super) async fn run(&self, sql: &str) -> Result<Vec<Vec<String>>, StepError> {
        let asked = self.session.client.simple_query(sql);
        match bounded(&self.stop, asked).await? {
            Ok(messages) => Ok(messages.iter().filter_map(row).collect()),
            Err(error) => {
                let ended = self.session.last_error().filter(|_| error.is_closed());
                Err(StepError::of(ended.unwrap_or(&error)))
            }
        }
    }
}

impl StepError {
    fn of(error: &Error) -> Self {
        match error.as_db_error() {
            Some(told) => Self::Refused(Box::new(told.clone())),
            None => Self::Failed(words(error)),
        }
    }
}

fn row(message: &SimpleQueryMessage) -> Option<Vec<String>> {
    let SimpleQueryMessage::Row(row) = message else {
        return None;
    };
    let columns = (0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned());
    Some(columns.collect())
}

async fn bounded<T>(
    stop: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, StepError> {
    let late = || StepError::Failed(format!("no answer within {STEP_LIMIT:?}"));
    tokio::select! {
        result = tokio::time::timeout(STEP_LIMIT, work) => result.map_err(|_| late()),
        () = stop.cancelled() => Err(StepError::Interrupted),
    }
}
