//! Rows of a deposed leader: their token is below the mark that was in force when they were written.
//!
//! All is asked of one session through the proxy: who led when, and the table.

use std::time::Duration;

use pgpalisade_authority::Scope;
use pgpalisade_tls::{ConnectError, Login, words};
use thiserror::Error;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row, SimpleQueryMessage};

/// Time to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Time for all that comes before the table is read, which takes as long as it is.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Characters of a row that are shown, and some more.
const ROW_SHOWN: usize = 300;

/// Where each row has its token, and when it was written.
#[derive(Debug)]
pub(crate) struct AuditedTable {
    pub(crate) scope: Scope,
    pub(crate) table: String,
    pub(crate) token_column: String,
    pub(crate) time_column: String,
    /// How far the clocks of the database and of the proxies may be apart.
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
    /// Rows from before, and those whose time is no point in time.
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
    #[error("there is no answer in time")]
    Silent,
    #[error("cannot connect: {0}")]
    Files(#[source] pgpalisade_tls::FileError),
    #[error("{0}")]
    Server(String),
    #[error("column {0:?} does not exist")]
    NoColumn(String),
    #[error("column {column:?} is of type {own}; it must be one of: {wanted}")]
    WrongType {
        column: String,
        own: String,
        wanted: String,
    },
    #[error("what answers there is no pgpalisade: connect to the proxy, which knows who led when")]
    NoProxy,
}

impl From<tokio_postgres::Error> for AuditError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(words(&error))
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
    let begun = timeout(ANSWER_WITHIN, begin(client, of)).await;
    let Begun { history, names } = begun.map_err(|_| AuditError::Silent)??;
    let (scope, clocks) = (of.scope.as_str(), of.clocks_within.as_secs_f64());
    let counts = client
        .query_one(&counts(&names), &[&history, &scope, &clocks])
        .await?;
    let limit = i64::from(of.limit);
    let late = client
        .query(&late(&names), &[&history, &scope, &clocks, &limit])
        .await?;
    Ok(Audit {
        since: counts.try_get(0)?,
        takeovers: counts.try_get(1)?,
        judged: counts.try_get(2)?,
        not_judged: counts.try_get(3)?,
        without_token: counts.try_get(4)?,
        late: counts.try_get(5)?,
        shown: late.iter().map(late_row).collect::<Result<_, _>>()?,
    })
}

/// What the table is judged by, and how it is called, in a transaction that has begun.
struct Begun {
    history: String,
    /// Of the table, and of its columns with token and time, as SQL has them.
    names: [String; 3],
}

/// Asks who led when, and begins to read. What is known of takeovers is older than what is read of the table then, so
/// that no row is judged by a takeover that came later.
async fn begin(client: &Client, of: &AuditedTable) -> Result<Begun, AuditError> {
    // The name of a scope has no quote.
    let scope = &of.scope;
    client
        .batch_execute(&format!("SET fencing.scope = '{scope}'"))
        .await?;
    let shown = client.simple_query("SHOW fencing.history").await;
    let shown = shown.map_err(|error| match error.code() {
        Some(&SqlState::UNDEFINED_OBJECT) => AuditError::NoProxy,
        _ => error.into(),
    })?;
    let history = shown.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    client
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        .await?;
    let table: u32 = client
        .query_one(
            "SELECT $1::pg_catalog.text::pg_catalog.regclass::pg_catalog.oid",
            &[&of.table],
        )
        .await?
        .try_get(0)?;
    // From here on nobody's own functions and operators are found, and rows that a policy hides are an error.
    client
        .batch_execute(
            "SET LOCAL search_path = pg_catalog; SET LOCAL row_security = off; SET LOCAL lock_timeout = '10s'",
        )
        .await?;
    let named = "SELECT $1::oid::regclass::text";
    let name = client.query_one(named, &[&table]).await?.try_get(0)?;
    let token = column(client, table, &of.token_column, &["int8", "int4", "int2"]).await?;
    let time = column(client, table, &of.time_column, &["timestamptz"]).await?;
    Ok(Begun {
        history: history.unwrap_or("[]").to_owned(),
        names: [name, token, time],
    })
}

/// The name of a column as SQL has it, where it is of one of these types.
async fn column(
    client: &Client,
    table: u32,
    name: &str,
    types: &[&str],
) -> Result<String, AuditError> {
    let sql = "SELECT quote_ident(a.attname), t.typname::text FROM pg_attribute AS a \
               JOIN pg_type AS t ON t.oid = a.atttypid \
               WHERE a.attrelid = $1 AND a.attname = $2::text::name AND a.attnum > 0 AND NOT a.attisdropped";
    let found = client.query_opt(sql, &[&table, &name]).await?;
    let Some(found) = found else {
        return Err(AuditError::NoColumn(name.to_owned()));
    };
    let own: String = found.try_get(1)?;
    match types.contains(&own.as_str()) {
        true => Ok(found.try_get(0)?),
        false => Err(AuditError::WrongType {
            column: name.to_owned(),
            own,
            wanted: types.join(", "),
        }),
    }
}

fn late_row(row: &Row) -> Result<LateRow, AuditError> {
    Ok(LateRow {
        written_at: row.try_get(0)?,
        token: row.try_get(1)?,
        mark: row.try_get(2)?,
        since: row.try_get(3)?,
        row: row.try_get(4)?,
    })
}

/// A time as the log has it.
fn utc(time: &str) -> String {
    format!(r#"to_char({time} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#)
}

/// The completed takeovers of the scope. Only such a one has ended all sessions of the leader before.
const TAKEOVERS: &str = r#"WITH takeovers AS MATERIALIZED (
    SELECT "to" AS mark, raised_at + took_us::float8 * interval '1 microsecond' AS over
      FROM json_to_recordset($1::text::json)
        AS history(scope text, "to" bigint, raised_at timestamptz, took_us bigint, outcome text)
     WHERE scope = $2 AND outcome = 'complete')"#;

/// Each row with the last takeover that was over when it was written. A repair may have lowered the mark, so that it is
/// the last one that counts, not the highest.
fn judged([table, _, time]: &[String; 3]) -> String {
    format!(
        "FROM {table} AS audited
         LEFT JOIN LATERAL (
           SELECT mark, over FROM takeovers
            WHERE isfinite(audited.{time}) AND over + $3::float8 * interval '1 second' < audited.{time}
            ORDER BY over DESC LIMIT 1) AS takeover ON true"
    )
}

fn counts(names: &[String; 3]) -> String {
    let (judged, since, token) = (judged(names), utc("min(over)"), &names[1]);
    format!(
        "{TAKEOVERS}
         SELECT (SELECT {since} FROM takeovers), (SELECT count(*) FROM takeovers), count(takeover.mark),
                count(*) FILTER (WHERE takeover.mark IS NULL),
                count(takeover.mark) FILTER (WHERE audited.{token} IS NULL),
                count(*) FILTER (WHERE audited.{token}::int8 < takeover.mark)
           {judged}"
    )
}

fn late(names: &[String; 3]) -> String {
    let [_, token, time] = names;
    let written_at = utc(&format!("audited.{time}"));
    let (judged, over) = (judged(names), utc("takeover.over"));
    format!(
        "{TAKEOVERS}
         SELECT {written_at}, audited.{token}::int8, takeover.mark, {over},
                left(to_json(audited.*)::text, {ROW_SHOWN})
           {judged}
          WHERE audited.{token}::int8 < takeover.mark ORDER BY audited.{time}, audited.{token} LIMIT $4"
    )
}
