//! A client's session, whose connection runs in a task.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::error::{DbError, Severity};
use tokio_postgres::{Client, Error, SimpleQueryMessage};

use crate::client::{ConnectError, Login, words};

/// An open session. After a drop the task tells the server.
#[derive(Debug)]
pub struct ClientSession {
    pub client: Client,
    driver: AbortHandle,
    /// Closed once the task has ended.
    runs: watch::Sender<()>,
    /// The fatal error that a statement has received.
    answered: OnceLock<Error>,
    last_error: Arc<OnceLock<Error>>,
}

/// Why a session was not opened, or gave no answer.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
pub struct Said {
    /// The server's error, if it is one.
    pub error: Option<Box<DbError>>,
    pub words: String,
}

impl Said {
    fn here(words: String) -> Self {
        Self { error: None, words }
    }

    fn silence(within: Duration) -> Self {
        Self::here(format!("no answer within {within:?}"))
    }
}

impl From<&Error> for Said {
    fn from(error: &Error) -> Self {
        Self {
            error: error.as_db_error().map(|told| Box::new(told.clone())),
            words: words(error),
        }
    }
}

impl Login {
    /// Opens a session, within this time.
    pub async fn open_within(&self, within: Duration) -> Result<ClientSession, Said> {
        let opened = timeout(within, self.open()).await;
        opened
            .map_err(|_| Said::silence(within))?
            .map_err(|error| match error {
                ConnectError::Server(error) => Said::from(&error),
                ConnectError::Files(error) => Said::here(error.to_string()),
            })
    }

    /// Logs in, and spawns the task. Not bounded.
    pub async fn open(&self) -> Result<ClientSession, ConnectError> {
        let (client, connection) = self.connect().await?;
        let last_error = Arc::new(OnceLock::new());
        let noted = Arc::clone(&last_error);
        let (runs, running) = watch::channel(());
        let driver = tokio::spawn(async move {
            let _running = running;
            let mut connection = pin!(connection);
            // Dropping the connection wakes all that wait for answers: note the error first.
            if let Err(error) = connection.as_mut().await {
                let _first = noted.set(error);
            }
        });
        Ok(ClientSession {
            client,
            driver: driver.abort_handle(),
            runs,
            answered: OnceLock::new(),
            last_error,
        })
    }
}

impl ClientSession {
    /// Error that ended the session, unless it only says that the session is closed. A pending statement may learn no
    /// more than that.
    #[must_use]
    pub fn last_error(&self) -> Option<&Error> {
        let last = self.answered.get().or_else(|| self.last_error.get());
        last.filter(|error| !error.is_closed())
    }

    /// Rows of the answer, within this time. If the session has ended, the error is its last one.
    pub async fn ask(&self, sql: &str, within: Duration) -> Result<Vec<Vec<String>>, Said> {
        let asked = timeout(within, self.client.simple_query(sql)).await;
        match asked.map_err(|_| Said::silence(within))? {
            Ok(messages) => Ok(messages.iter().filter_map(row).collect()),
            Err(error) => {
                let last = self.last_error().filter(|_| error.is_closed());
                let said = Said::from(last.unwrap_or(&error));
                // A statement may receive the error that ends the session; then the task does not.
                let severity = error.as_db_error().map(DbError::parsed_severity);
                if severity == Some(Some(Severity::Fatal)) {
                    let _first = self.answered.set(error);
                }
                Err(said)
            }
        }
    }

    /// Cancel safe.
    pub async fn ended(&self) {
        self.runs.closed().await;
    }

    /// Ends the session, within this time. Afterwards a reachable server knows.
    pub async fn end(self, within: Duration) {
        drop(self.client);
        if timeout(within, self.runs.closed()).await.is_err() {
            self.driver.abort();
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
