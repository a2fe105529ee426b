//! Connection to the server: its settings, its messages, and the meaning of its errors.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_tls::{ConnectError, Stream, words};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, Row, Socket};

use super::options::{OWN, Options, SCHEMA};
use crate::AuthorityError;
use crate::owned::{FIRST_STATEMENTS, Strange};

/// The step is for another store, or another format.
pub(super) const OTHER_STORE: &str = "PFA01";
/// An answered step is missing.
pub(super) const WENT_BACK: &str = "PFA02";

/// The oldest server with `xid8`, which the schema uses.
pub(super) const OLDEST_VERSION: i32 = 13;

pub(super) type Arguments<'a> = [(&'a (dyn ToSql + Sync), Type)];

pub(super) struct StoreConnection {
    /// Dropping it closes the socket, even during a statement. The server then ends the statement.
    _driver: JoinSet<()>,
    pub(super) client: Client,
    /// Held during each exchange: no other message may come between those of a transaction.
    pub(super) turn: tokio::sync::Mutex<()>,
    pub(super) heard: Arc<Heard>,
}

#[derive(Default)]
pub(super) struct Heard {
    /// Woken by each notification, and at the end of the connection.
    pub(super) changed: Notify,
    warning: Mutex<Option<String>>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("{0}")]
    Broken(String),
    /// The server refused; the statement is undone.
    #[error("{} ({})", .0.message(), .0.code().code())]
    Refused(Box<DbError>),
    /// The server is a standby, too old, or has the wrong encoding.
    #[error("{0}")]
    Unsuitable(String),
    #[error("{0}")]
    Record(String),
    #[error("{0}")]
    Strange(Strange),
}

/// Use of a connection, which decides how its session is prepared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Writes: a standby is refused, and the settings are made.
    Steps,
    /// As steps, and listens for changes.
    Watch,
    /// Only reads, and takes the server as it is.
    Inspect,
}

impl StoreConnection {
    /// Connects and prepares the session, within the options' timeout.
    pub(super) async fn connect(
        options: &Options,
        purpose: Purpose,
    ) -> Result<Self, ConnectionError> {
        let bound = options.timeout;
        let connected = timeout(bound, Self::connect_unbounded(options, purpose)).await;
        let silence = |_| ConnectionError::Broken(format!("no connection within {bound:?}"));
        connected.map_err(silence)?
    }

    async fn connect_unbounded(
        options: &Options,
        purpose: Purpose,
    ) -> Result<Self, ConnectionError> {
        let mut login = options.login.clone();
        let config = &mut login.config;
        // Set here too: a read-only connection is turned away before the settings are made.
        let read_write = "-c default_transaction_read_only=off";
        let given = config.get_options().unwrap_or_default().to_owned();
        config.options(format!("{given} {read_write}").trim_start());
        let (client, connection) =
            login
                .connect_to_any(options.timeout)
                .await
                .map_err(|error| match error {
                    ConnectError::Server(error) => ConnectionError::from(error),
                    ConnectError::Files(error) => ConnectionError::Broken(format!("TLS: {error}")),
                })?;
        let heard = Arc::new(Heard::default());
        let mut driver = JoinSet::new();
        driver.spawn(drive(connection, Arc::clone(&heard)));
        let link = Self {
            client,
            turn: tokio::sync::Mutex::default(),
            heard,
            _driver: driver,
        };
        // Two messages, because the guard is parsed with the path that the first one sets.
        link.client.batch_execute(FIRST_STATEMENTS).await?;
        link.client.batch_execute(&OWN.prepare_guard()).await?;
        if purpose != Purpose::Inspect {
            link.check_server().await?;
            let settings = settings(options, purpose);
            link.client.batch_execute(&settings).await?;
        }
        // A login warns of what has nothing to do with any commit, such as another version of a collation.
        *link.heard.warning.lock() = None;
        Ok(link)
    }

    async fn check_server(&self) -> Result<(), ConnectionError> {
        let asked = "SELECT pg_is_in_recovery(), current_setting('server_version_num')::int, \
                     current_setting('server_version'), current_setting('server_encoding')";
        let rows = self.client.query_typed(asked, &[]).await?;
        let row = first(&rows)?;
        let (is_standby, number): (bool, i32) = (get(row, 0)?, get(row, 1)?);
        let (version, encoding): (&str, &str) = (get(row, 2)?, get(row, 3)?);
        let why = if number / 10_000 < OLDEST_VERSION {
            format!("this is PostgreSQL {version}; the authority needs {OLDEST_VERSION} or newer")
        } else if encoding != "UTF8" {
            format!("the database has encoding {encoding}; the authority needs one with UTF8")
        } else if is_standby {
            "this server is a standby and accepts no writes; name the primary, or all hosts of the cluster".into()
        } else {
            return Ok(());
        };
        Err(ConnectionError::Unsuitable(why))
    }

    /// Runs a statement and waits for ReadyForQuery, which the server sends after the commit. A wait beyond `bound`
    /// ends the connection.
    pub(super) async fn ask(
        &self,
        bound: Duration,
        sql: &str,
        arguments: &Arguments<'_>,
    ) -> Result<Vec<Row>, ConnectionError> {
        let asked = async {
            let _turn = self.turn.lock().await;
            Ok(self.client.query_typed(sql, arguments).await?)
        };
        let rows = within(bound, asked).await?;
        self.unwarned()?;
        Ok(rows)
    }

    /// Fails if the server warned: it warns if the wait for a synchronous standby was cut short, and then the commit
    /// is only local.
    pub(super) fn unwarned(&self) -> Result<(), ConnectionError> {
        let mut warning = self.heard.warning.lock();
        match warning.take() {
            Some(warning) => Err(ConnectionError::Broken(format!(
                "it answered with a warning, so its answer may not be durable: {warning}"
            ))),
            None => Ok(()),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

async fn drive(mut connection: Connection<Socket, Stream<Socket>>, heard: Arc<Heard>) {
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            Ok(AsyncMessage::Notification(_)) => heard.changed.notify_one(),
            Ok(AsyncMessage::Notice(notice)) => {
                tracing::debug!(%notice, "authority: the server says");
                if is_warning(&notice) {
                    *heard.warning.lock() = Some(notice.message().to_owned());
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "authority: connection ended");
                break;
            }
        }
    }
    heard.changed.notify_one();
}

/// Limits the wait for an answer. Exceeding it ends the connection.
pub(super) async fn within<T>(
    bound: Duration,
    answer: impl Future<Output = Result<T, ConnectionError>>,
) -> Result<T, ConnectionError> {
    let silence = |_| ConnectionError::Broken(format!("no answer within {bound:?}"));
    timeout(bound, answer).await.map_err(silence)?
}

/// Near a wraparound the server warns of each new transaction id, and still writes. Its words are translated, the names
/// of its functions are not.
const WRAPAROUND_IS_NEAR: [&str; 2] = ["GetNewTransactionId", "GetNewMultiXactId"];

/// Whether a notice may be about the commit. What is not known to be about something else counts.
fn is_warning(notice: &DbError) -> bool {
    use tokio_postgres::error::Severity;
    let is_about_ids = notice
        .routine()
        .is_some_and(|function| WRAPAROUND_IS_NEAR.contains(&function));
    notice.parsed_severity() == Some(Severity::Warning) && !is_about_ids
}

/// Settings that every step relies on.
fn settings(options: &Options, purpose: Purpose) -> String {
    let limit = options.timeout.as_millis();
    // Full reads, and recovery, may take longer.
    let longest = limit * 12;
    let own = match purpose {
        Purpose::Watch => format!("LISTEN {SCHEMA};"),
        // Plans live as long as the connection. One made for a small table would scan the whole table later, so plans
        // must use an index.
        Purpose::Steps => "SET enable_seqscan = off;".into(),
        Purpose::Inspect => String::new(),
    };
    format!(
        "SET default_transaction_isolation = 'read committed'; \
         SET default_transaction_read_only = off; \
         SET client_min_messages = warning; \
         SET jit = off; \
         SET lock_timeout = {limit}; \
         SET statement_timeout = {longest}; \
         SET idle_in_transaction_session_timeout = {limit}; \
         SELECT pg_catalog.set_config('synchronous_commit', \
            CASE pg_catalog.current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' \
            ELSE 'on' END, false); \
         SELECT pg_catalog.set_config(name, '1s', false) FROM pg_catalog.pg_settings \
            WHERE name = 'client_connection_check_interval'; \
         {own}"
    )
}

pub(super) fn first(rows: &[Row]) -> Result<&Row, ConnectionError> {
    rows.first().ok_or_else(ConnectionError::no_row)
}

/// Reads a column of a row.
pub(super) fn get<'a, T>(row: &'a Row, index: usize) -> Result<T, ConnectionError>
where
    T: tokio_postgres::types::FromSql<'a>,
{
    row.try_get(index)
        .map_err(|error| ConnectionError::Record(words(&error)))
}

impl From<tokio_postgres::Error> for ConnectionError {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(refusal) => Self::Refused(Box::new(refusal.clone())),
            None => Self::Broken(words(&error)),
        }
    }
}

impl ConnectionError {
    pub(super) fn no_row() -> Self {
        Self::Record("an answer without rows".into())
    }

    pub(super) fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Refused(refusal) => Some(refusal.code()),
            _ => None,
        }
    }

    /// Whether the connection is unusable after this error. The server ends it with 57P..
    pub(super) fn ends_connection(&self) -> bool {
        match self.code() {
            Some(code) => code.code().starts_with("57P"),
            None => true,
        }
    }

    /// Whether the same connection may retry: this step lost a conflict with another.
    pub(super) fn gave_way(&self) -> bool {
        let again = [
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
        ];
        self.code().is_some_and(|code| again.contains(code))
    }

    /// Error for the caller of a step. `place` is the location of the store.
    pub(super) fn into_authority(self, place: &str) -> AuthorityError {
        let said = format!("{place}: {self}");
        let Some(code) = self.code().map(SqlState::code) else {
            return match self {
                Self::Record(_) | Self::Strange(_) => AuthorityError::Damaged(said),
                _ => AuthorityError::Unavailable(said),
            };
        };
        match code {
            OTHER_STORE => AuthorityError::Damaged(said),
            WENT_BACK => AuthorityError::WentBack(said),
            // The schema or a part of it is missing.
            "3F000" | "42P01" | "42883" | "42703" => AuthorityError::Damaged(said),
            // Disk full, out of memory, or file system errors.
            _ if code.starts_with("53") && code != "53300" => AuthorityError::Storage(said),
            _ if code.starts_with("58") => AuthorityError::Storage(said),
            _ if code.starts_with("XX") => AuthorityError::Damaged(said),
            // Violated constraints and wrong values cannot come from a step on intact tables.
            _ if code.starts_with("22") || code.starts_with("23") => AuthorityError::Damaged(said),
            _ => AuthorityError::Unavailable(said),
        }
    }
}
