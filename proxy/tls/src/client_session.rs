//! A client's session, whose connection runs in a task.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::{Client, Error};

use crate::client::{ConnectError, Login};

/// An open session. After a drop the task tells the server.
#[derive(Debug)]
pub struct ClientSession {
    pub client: Client,
    driver: AbortHandle,
    /// Closed once the task has ended.
    runs: watch::Sender<()>,
    last_error: Arc<OnceLock<Error>>,
}

impl Login {
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
            last_error,
        })
    }
}

impl ClientSession {
    /// Error that ended the session. A pending statement may only learn that the session is closed.
    #[must_use]
    pub fn last_error(&self) -> Option<&Error> {
        self.last_error.get()
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
