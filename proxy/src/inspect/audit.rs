//! Rows of a deposed leader: their token is below the mark that was in force when they were written.
//!
//! All is asked of one session through the proxy: who led when, and the table.

use std::error::Error as _;
use std::time::Duration;

use pgpalisade_authority::Scope;
use pgpalisade_tls::{ConnectError, Login};
use thiserror::Error;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

/// Time to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Where each row has its token, and when it was written.
#[derive(Debug)]
pub(crate) struct AuditedTable {
    pub(crate) scope: Scope,
    pub(crate) table: String,
    pub(crate) token_column: String,
    pub(crate) time_column: String,
    /// How far the clocks of the database and the authority may be apart.
    pub(crate) clocks_within: Duration,
    /// Rows that are shown.
    pub(crate) limit: u32,
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Audit {
    /// When the first completed takeover that is known was over. None: there is nothing to judge by.
    pub(crate) since: Option<String>,
    /// Completed takeovers that are known.
    pub(crate) takeovers: i64,
    /// Rows since then.
    pub(crate) judged: i64,
    /// Rows from before.
    pub(crate) not_judged: i64,
    /// Rows since then without a token.
    pub(crate) without_token: i64,
    /// Rows with a token below the mark of their time.
    pub(crate) late: i64,
    /// The first of these by their time.
    pub(crate) shown: Vec<LateRow>,
}

/// A row that the proxy would have refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LateRow {
    pub(crate) written_at: String,
    pub(crate) token: i64,
    pub(crate) mark: i64,
    /// The takeover to this mark was over.
    pub(crate) since: String,
    /// The row as JSON.
    pub(crate) row: String,
}

/// Why nothing was found out.
#[derive(Debug, Error)]
pub(crate) enum AuditError {
    #[error("cannot connect within {CONNECT_WITHIN:?}")]
    Silent,
    #[error("cannot connect: {0}")]
    Files(#[source] pgpalisade_tls::FileError),
    #[error("{0}")]
    Server(String),
    #[error("what answers there is no pgpalisade: connect to the proxy, which knows who led when")]
    NoProxy,
}

impl From<tokio_postgres::Error> for AuditError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(match (error.as_db_error(), error.source()) {
            (Some(said), _) => match said.hint() {
                Some(hint) => format!("{} ({hint})", said.message()),
                None => said.message().to_owned(),
            },
            (None, Some(source)) => format!("{error}: {source}"),
            (None, None) => error.to_string(),
        })
    }
}

/// Reads the table once. Changes nothing.
///
/// # Errors
///
/// [`AuditError`].
pub(crate) async fn audit(login: &Login, of: &AuditedTable) -> Result<Audit, AuditError> {
    let connected = timeout(CONNECT_WITHIN, login.connect()).await;
    let (client, connection) = connected
        .map_err(|_| AuditError::Silent)?
        .map_err(|error| match error {
            ConnectError::Server(error) => error.into(),
            ConnectError::Files(error) => AuditError::Files(error),
        })?;
    let driver = tokio::spawn(connection);
    let found = read(&client, of).await;
    drop(client);
    let _ = timeout(CONNECT_WITHIN, driver).await; // It has said all.
    found
}

async fn read(client: &Client, of: &AuditedTable) -> Result<Audit, AuditError> {
    // What is known of takeovers is older than what is read of the table, so that no takeover is taken for earlier
    // than it was. The name of a scope has no quote.
    let scope = &of.scope;
    client
        .batch_execute(&format!("SET fencing.scope = '{scope}'"))
        .await?;
    client
        .simple_query("SHOW fencing.history")
        .await
        .map_err(|error| match error.code() {
            Some(&SqlState::UNDEFINED_OBJECT) => AuditError::NoProxy,
            _ => error.into(),
        })?;
    client
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        .await?;
    let quoted = client
        .query_one(
            "SELECT $1::text::regclass::text, quote_ident($2), quote_ident($3)",
            &[&of.table, &of.token_column, &of.time_column],
        )
        .await?;
    let names: [String; 3] = [quoted.get(0), quoted.get(1), quoted.get(2)];
    let clocks = of.clocks_within.as_secs_f64();
    let counts = client
        .query_one(&counts(&names), &[&scope.as_str(), &clocks])
        .await?;
    let limit = i64::from(of.limit);
    let late = client
        .query(&late(&names), &[&scope.as_str(), &clocks, &limit])
        .await?;
    Ok(Audit {
        since: counts.get(0),
        takeovers: counts.get(1),
        judged: counts.get(2),
        not_judged: counts.get(3),
        without_token: counts.get(4),
        late: counts.get(5),
        shown: late.iter().map(late_row).collect(),
    })
}

fn late_row(row: &Row) -> LateRow {
    LateRow {
        written_at: row.get(0),
        token: row.get(1),
        mark: row.get(2),
        since: row.get(3),
        row: row.get(4),
    }
}

/// A time as the log has it.
fn utc(time: &str) -> String {
    format!(r#"to_char({time} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#)
}

/// Each row with the last takeover that was over when it was written. Only a completed one has ended all sessions of
/// the leader before. A repair may have lowered the mark, so that it is the last one that counts, not the highest.
fn judged([table, token, time]: &[String; 3]) -> String {
    format!(
        r#"WITH takeovers AS MATERIALIZED (
             SELECT "to" AS mark, raised_at + took_us * interval '1 microsecond' AS over
               FROM json_to_recordset(current_setting('fencing.history')::json)
                 AS history(scope text, "to" bigint, raised_at timestamptz, took_us bigint, outcome text)
              WHERE scope = $1 AND outcome = 'complete'),
           judged AS (
             SELECT audited AS content, audited.{token}::bigint AS token, audited.{time}::timestamptz AS written_at,
                    takeover.mark, takeover.over
               FROM {table} AS audited
               LEFT JOIN LATERAL (
                 SELECT mark, over FROM takeovers
                  WHERE over + $2 * interval '1 second' < audited.{time}::timestamptz
                  ORDER BY over DESC LIMIT 1) AS takeover ON true)"#
    )
}

fn counts(names: &[String; 3]) -> String {
    let (judged, since) = (judged(names), utc("min(over)"));
    format!(
        "{judged}
         SELECT (SELECT {since} FROM takeovers), (SELECT count(*) FROM takeovers), count(mark),
                count(*) FILTER (WHERE mark IS NULL), count(mark) FILTER (WHERE token IS NULL),
                count(*) FILTER (WHERE token < mark)
           FROM judged"
    )
}

fn late(names: &[String; 3]) -> String {
    let (judged, written_at, over) = (judged(names), utc("written_at"), utc("over"));
    format!(
        "{judged}
         SELECT {written_at}, token, mark, {over}, to_json(content)::text
           FROM judged WHERE token < mark ORDER BY judged.written_at, token LIMIT $3"
    )
}
