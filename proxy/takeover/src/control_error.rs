//! Errors of the control connection.

use std::error::Error as _;
use std::sync::Arc;

use pgpalisade_authority::Cluster;
use pgpalisade_authority::owned::Strange;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// Reason why the control connection gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ControlError {
    /// No connection at the moment. The text says why.
    #[error("the control connection is down: {0}")]
    Down(Arc<str>),
    /// The connection was lost during use.
    #[error("the control connection was lost")]
    Lost,
    /// A new connection leads to another cluster, timeline or start of the server. It says nothing about the sessions
    /// in question.
    #[error("the control connection now leads to cluster {now}, but the session is on {ours}")]
    Moved {
        /// Cluster of the session.
        ours: Cluster,
        /// Cluster of the connection.
        now: Cluster,
    },
    /// The server refused the statement.
    #[error("{0}")]
    Server(ServerError),
    /// The witness belongs to another role, or has something attached to it.
    #[error("the witness of the marks is {0}")]
    Strange(Arc<Strange>),
    /// The server does not listen, or cannot be reached.
    #[error("cannot connect: {0}")]
    Dial(Arc<std::io::Error>),
    /// The server did not answer in time.
    #[error("the server did not answer in time")]
    Timeout,
    /// The answer does not have the expected form.
    #[error("unexpected answer from the server: {0}")]
    Answer(ServerError),
    /// The files for TLS to the server are not valid.
    #[error("cannot use TLS to the server: {0}")]
    Files(Arc<pgpalisade_tls::FileError>),
}

impl ControlError {
    /// Whether a server that starts, stops or is full explains the error. A refused login or bad TLS does not pass.
    /// <https://www.postgresql.org/docs/15/errcodes-appendix.html>
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Dial(_) | Self::Timeout | Self::Lost => true,
            Self::Server(error) => error.may_pass,
            _ => false,
        }
    }

    /// Whether the server says that the control role may not do it.
    pub(super) fn is_not_permitted(&self) -> bool {
        matches!(self, Self::Server(error) if error.code == Some(SqlState::INSUFFICIENT_PRIVILEGE))
    }

    /// Whether the server says that a table or its schema is missing.
    pub(super) fn is_missing(&self) -> bool {
        let missing = [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];
        matches!(self, Self::Server(error) if error.code.as_ref().is_some_and(|code| missing.contains(code)))
    }
}

impl From<tokio_postgres::Error> for ControlError {
    fn from(error: tokio_postgres::Error) -> Self {
        let severity = error.as_db_error().and_then(DbError::parsed_severity);
        // FATAL and PANIC end the session: it was terminated, or the server stops.
        if error.is_closed() || matches!(severity, Some(Severity::Fatal | Severity::Panic)) {
            Self::Lost
        } else {
            Self::Server(error.into())
        }
    }
}

/// Error of a statement or a login, in words.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub struct ServerError {
    pub(super) text: Arc<str>,
    pub(super) code: Option<SqlState>,
    pub(super) may_pass: bool,
}

impl From<serde_json::Error> for ServerError {
    fn from(error: serde_json::Error) -> Self {
        Self {
            text: error.to_string().into(),
            code: None,
            may_pass: false,
        }
    }
}

/// With its cause: tokio-postgres only displays "db error".
impl From<tokio_postgres::Error> for ServerError {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code().cloned();
        let text = match (error.as_db_error(), error.source()) {
            (Some(db), _) => {
                let code = db.code().code();
                format!("{}: {} ({code})", db.severity(), db.message())
            }
            (None, Some(source)) => format!("{error}: {source}"),
            (None, None) => error.to_string(),
        };
        let passing = code.as_ref().map(|code| PASSING.contains(code));
        Self {
            text: text.into(),
            may_pass: passing.unwrap_or_else(|| error.is_closed()),
            code,
        }
    }
}

/// Errors of a server that has no room, shuts down, or starts.
const PASSING: [SqlState; 4] = [
    SqlState::TOO_MANY_CONNECTIONS,
    SqlState::ADMIN_SHUTDOWN,
    SqlState::CRASH_SHUTDOWN,
    SqlState::CANNOT_CONNECT_NOW,
];
