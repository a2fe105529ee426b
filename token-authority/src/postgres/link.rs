//! One connection to the server: its settings, what it hears, and what its errors mean.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_tls::{ConnectError, Stream, words};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, Row, Socket};

use super::options::{Options, SCHEMA};
use super::own::OWN;
use crate::AuthorityError;
use crate::owned::{NAMES, Strange};

/// The step of another store, or of another format.
pub(super) const OTHER_STORE: &str = "PFA01";
/// A step that was answered is gone.
pub(super) const WENT_BACK: &str = "PFA02";

/// The oldest server that has what the schema uses (`xid8`).
pub(super) const OLDEST_VERSION: i32 = 13;

/// How a step is asked: a text with its arguments and their types. One message, one transaction.
pub(super) type Arguments<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// An open connection.
pub(super) struct Link {
    client: Client,
    /// Held while something is asked: nothing may come between the messages of a transaction.
    pub(super) turn: tokio::sync::Mutex<()>,
    heard: Arc<Heard>,
    driver: JoinHandle<()>,
}

/// What the server says unasked.
#[derive(Default)]
pub(super) struct Heard {
    /// Woken by each notification, and when the connection ends.
    pub(super) changed: Notify,
    warning: Mutex<Option<String>>,
}

/// Why something did not work on a connection.
#[derive(Debug)]
pub(super) enum LinkError {
    /// The connection is of no use any more.
    Broken(String),
    /// The server refused; what was asked is undone.
    Refused(Box<DbError>),
    /// A standby answered.
    Standby,
    /// The server is older than [`OLDEST_VERSION`].
    TooOld(String),
    /// The database cannot hold every text.
    Encoding(String),
    /// A row makes no sense.
    Record(String),
    /// The store is somebody else's, or has something attached to it.
    Strange(Strange),
}

/// What a session has to be like before it is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Writes: a standby is refused, the settings are made sure of.
    Steps,
    /// As steps, and hears what changes.
    Watch,
    /// Looks, and takes the server as it is.
    Inspect,
}

impl Link {
    /// Connects and prepares the session. Bounded by the options' timeout as a whole.
    pub(super) async fn connect(options: &Options, purpose: Purpose) -> Result<Self, LinkError> {
        let bound = options.timeout();
        match timeout(bound, Self::connect_unbounded(options, purpose)).await {
            Ok(connected) => connected,
            Err(_) => Err(LinkError::Broken(format!("no connection within {bound:?}"))),
        }
    }

    async fn connect_unbounded(options: &Options, purpose: Purpose) -> Result<Self, LinkError> {
        let mut login = options.login().clone();
        let config = &mut login.config;
        // Also here, since a connection that may not write is turned away before the settings are made.
        let read_write = "-c default_transaction_read_only=off";
        let given = config.get_options().unwrap_or_default().to_owned();
        config.options(format!("{given} {read_write}").trim_start());
        let (client, connection) = login.connect().await.map_err(|error| match error {
            ConnectError::Server(error) => LinkError::from(error),
            ConnectError::Files(error) => LinkError::Broken(format!("TLS: {error}")),
        })?;
        let heard = Arc::new(Heard::default());
        let driver = tokio::spawn(drive(connection, Arc::clone(&heard)));
        let link = Self {
            client,
            turn: tokio::sync::Mutex::default(),
            heard,
            driver,
        };
        // In two messages: the guard is read with the path that the first one sets.
        link.client.batch_execute(NAMES).await?;
        link.client.batch_execute(&OWN.prepare_guard()).await?;
        if purpose != Purpose::Inspect {
            link.check_server().await?;
            let settings = settings(options, purpose);
            link.client.batch_execute(&settings).await?;
        }
        Ok(link)
    }

    async fn check_server(&self) -> Result<(), LinkError> {
        let asked = "SELECT pg_is_in_recovery(), current_setting('server_version_num')::int, \
                     current_setting('server_version'), current_setting('server_encoding')";
        let rows = self.client.query_typed(asked, &[]).await?;
        let row = rows.first().ok_or_else(LinkError::no_row)?;
        let number: i32 = get(row, 1)?;
        if number / 10_000 < OLDEST_VERSION {
            return Err(LinkError::TooOld(get(row, 2)?));
        }
        let encoding: String = get(row, 3)?;
        if encoding != "UTF8" {
            return Err(LinkError::Encoding(encoding));
        }
        if get(row, 0)? {
            return Err(LinkError::Standby);
        }
        Ok(())
    }

    /// Asks, and waits until the answer is complete: a row alone says nothing, since the server commits after it
    /// and tells with ReadyForQuery. A wait over `bound` is the end of the connection.
    pub(super) async fn ask(
        &self,
        bound: Duration,
        sql: &str,
        arguments: &Arguments<'_>,
    ) -> Result<Vec<Row>, LinkError> {
        let asked = async {
            let _turn = self.turn.lock().await;
            self.client.query_typed(sql, arguments).await
        };
        let rows = match timeout(bound, asked).await {
            Ok(answer) => answer?,
            Err(_) => return Err(LinkError::Broken(format!("no answer within {bound:?}"))),
        };
        self.unwarned()?;
        Ok(rows)
    }

    /// Runs several statements as one transaction.
    pub(super) async fn script(&self, bound: Duration, sql: &str) -> Result<(), LinkError> {
        match timeout(bound, self.client.batch_execute(sql)).await {
            Ok(done) => done?,
            Err(_) => return Err(LinkError::Broken(format!("no answer within {bound:?}"))),
        }
        self.unwarned()
    }

    /// No step warns. The warning that may come is that the wait for a synchronous standby was cut short: the server
    /// then says that it has committed, though only it has.
    pub(super) fn unwarned(&self) -> Result<(), LinkError> {
        let mut warning = self.heard.warning.lock();
        match warning.take() {
            Some(warning) => Err(LinkError::Broken(format!(
                "it answered with a warning, so its answer may not be durable: {warning}"
            ))),
            None => Ok(()),
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// What the server says unasked.
    pub(super) fn heard(&self) -> &Heard {
        &self.heard
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Closes the socket, whatever is still under way. The server ends the statement by itself.
        self.driver.abort();
    }
}

/// Moves the bytes of a connection until it ends.
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

fn is_warning(notice: &DbError) -> bool {
    use tokio_postgres::error::Severity;
    notice.parsed_severity() == Some(Severity::Warning)
}

/// What every step relies on.
fn settings(options: &Options, purpose: Purpose) -> String {
    let limit = options.timeout().as_millis();
    // Reads of everything, and recovery, may take longer.
    let longest = limit * 12;
    let own = match purpose {
        Purpose::Watch => format!("LISTEN {SCHEMA};"),
        // The plans of the steps live as long as the connection. One that was made while a table was small would read
        // all of it later; so they go through an index.
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

/// A column of a row, or why it cannot be read.
pub(super) fn get<'a, T>(row: &'a Row, index: usize) -> Result<T, LinkError>
where
    T: tokio_postgres::types::FromSql<'a>,
{
    row.try_get(index)
        .map_err(|error| LinkError::Record(words(&error)))
}

impl From<tokio_postgres::Error> for LinkError {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(refusal) => Self::Refused(Box::new(refusal.clone())),
            None => Self::Broken(words(&error)),
        }
    }
}

impl LinkError {
    pub(super) fn no_row() -> Self {
        Self::Record("an answer without rows".into())
    }

    /// The server's code, where it refused.
    pub(super) fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Refused(refusal) => Some(refusal.code()),
            _ => None,
        }
    }

    /// Whether the connection is of no use after it. With 57P.. the server says farewell.
    pub(super) fn ends_connection(&self) -> bool {
        match self.code() {
            Some(code) => code.code().starts_with("57P"),
            None => true,
        }
    }

    /// Whether the same may be asked again on the same connection: two steps met, and this one gave way.
    pub(super) fn gave_way(&self) -> bool {
        let again = [
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
        ];
        self.code().is_some_and(|code| again.contains(code))
    }

    /// What the caller of a step is told. `place` says where the store is.
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
            // Disk full, out of memory; errors of the file system.
            _ if code.starts_with("53") && code != "53300" => AuthorityError::Storage(said),
            _ if code.starts_with("58") => AuthorityError::Storage(said),
            _ if code.starts_with("XX") => AuthorityError::Damaged(said),
            // Broken constraints, wrong values: they cannot come from a step on sound tables.
            _ if code.starts_with("22") || code.starts_with("23") => AuthorityError::Damaged(said),
            _ => AuthorityError::Unavailable(said),
        }
    }
}

impl std::fmt::Display for LinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broken(why) | Self::Record(why) => f.write_str(why),
            Self::Refused(refusal) => {
                write!(f, "{} ({})", refusal.message(), refusal.code().code())
            }
            Self::Strange(strange) => strange.fmt(f),
            Self::Standby => f.write_str(
                "this server is a standby and accepts no writes; name the primary, or all hosts of the cluster",
            ),
            Self::TooOld(version) => write!(
                f,
                "this is PostgreSQL {version}; the authority needs {OLDEST_VERSION} or newer"
            ),
            Self::Encoding(encoding) => write!(
                f,
                "the database has encoding {encoding}; the authority needs one with UTF8"
            ),
        }
    }
}
