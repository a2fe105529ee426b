//! A session on one path. Every wait is bounded.

use std::time::Duration;

use pgpalisade_tls::{ClientSession, ConnectError};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, Row};

use crate::error::{BenchError, said};
use crate::target::{BenchTarget, Path};

pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const GOODBYE: Duration = Duration::from_secs(2);

pub(crate) struct BenchConnection {
    path: Path,
    session: ClientSession,
}

impl BenchConnection {
    pub(crate) async fn open(target: &BenchTarget) -> Result<Self, BenchError> {
        let (path, address) = (target.path, || target.address.clone());
        let opened = timeout(ANSWER_WITHIN, target.login().open()).await;
        let opened = opened.map_err(|_| BenchError::Silent(path, address(), ANSWER_WITHIN))?;
        let why = |error| match error {
            ConnectError::Server(error) => said(&error),
            ConnectError::Files(error) => error.to_string(),
        };
        let session = opened.map_err(|error| BenchError::Login(path, address(), why(error)))?;
        Ok(Self { path, session })
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.session.client
    }

    /// If the session had ended before, its own error tells more.
    pub(crate) fn failed(&self, error: &Error) -> BenchError {
        let ended = self.session.last_error().filter(|_| error.is_closed());
        BenchError::Failed(self.path, said(ended.unwrap_or(error)))
    }

    pub(crate) const fn stuck(&self, within: Duration) -> BenchError {
        BenchError::Stuck(self.path, within)
    }

    pub(crate) async fn within<T>(&self, answer: impl Future<Output = T>) -> Result<T, BenchError> {
        let answered = timeout(ANSWER_WITHIN, answer).await;
        answered.map_err(|_| self.stuck(ANSWER_WITHIN))
    }

    pub(crate) async fn query(&self, sql: &str) -> Result<Result<Vec<Row>, Error>, BenchError> {
        self.within(self.client().query_typed(sql, &[])).await
    }

    /// The value of a SHOW; `None` if the server does not know the setting.
    pub(crate) async fn show(&self, sql: &str) -> Result<Option<String>, BenchError> {
        let answer = match self.query(sql).await? {
            Ok(rows) => rows.first().map(|row| row.try_get(0)).transpose(),
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => Ok(None),
            Err(error) => Err(error),
        };
        answer.map_err(|error| self.failed(&error))
    }

    /// Ends the session. Then the server knows.
    pub(crate) async fn close(self) {
        self.session.end(GOODBYE).await;
    }
}
