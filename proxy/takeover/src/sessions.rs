//! Looks at server sessions, and ends them. Every statement is a transaction of its own, because pg_stat_activity is
//! a snapshot per transaction (<https://www.postgresql.org/docs/15/monitoring-stats.html#MONITORING-STATS-VIEWS>).

use std::collections::BTreeSet;
use std::fmt;

use pgpalisade_authority::{Backend, Cluster, Scope, Token};
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::Identified;
use super::control::{Control, STARTED_US, answer};
use super::control_error::ControlError;
use super::error::DeclareError;
use pgpalisade_fence::readable::readable;
use pgpalisade_fence::statement_text::{Literals, StatementText};

/// The sessions in question, from two arrays.
const OLD: &str = "ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) AS o(pid, started)";

/// Content of pg_stat_activity, without its lookup of user and database names: a look costs half as much.
const SESSIONS: &str = "pg_catalog.pg_stat_get_activity(NULL)";

/// Maximum number of sessions that are named if they do not end.
const HOLDOUTS_NAMED: usize = 3;

/// The two arrays of [`OLD`].
type Arrays = (Vec<i32>, Vec<i64>);

fn arrays(backends: &[Backend]) -> Arrays {
    backends.iter().map(|b| (b.pid, b.started_us)).unzip()
}

fn params((pids, started): &Arrays) -> [(&(dyn ToSql + Sync), Type); 2] {
    [(pids, Type::INT4_ARRAY), (started, Type::INT8_ARRAY)]
}

/// The session of a row whose pid and [`STARTED_US`] are in two columns, beginning with this one.
pub(super) fn backend(row: &Row, column: usize) -> Result<Backend, ControlError> {
    Ok(Backend {
        pid: answer(row, column)?,
        started_us: answer(row, column + 1)?,
    })
}

fn terminate_statement() -> String {
    format!(
        "SELECT a.xact_start IS NOT NULL, pg_catalog.pg_terminate_backend(a.pid) \
         FROM {OLD} JOIN {SESSIONS} a ON a.pid = o.pid \
         WHERE {STARTED_US} = o.started"
    )
}

/// Terminates each session that matches on both pid and start, in one statement. Returns how many of them had a
/// transaction open, as far as the control role may see it.
pub(super) async fn terminate(
    control: &Control,
    backends: &[Backend],
    deadline: Instant,
) -> Result<u64, ControlError> {
    let old = arrays(backends);
    let told = control
        .query(&terminate_statement(), &params(&old), deadline)
        .await?;
    let is_open = |row| Ok(u64::from(answer::<bool>(row, 0)?));
    told.iter().map(is_open).sum()
}

/// The same over a connection that may not serve.
pub(super) async fn terminate_over(
    client: &Client,
    backends: &[Backend],
) -> Result<(), ControlError> {
    let old = arrays(backends);
    client
        .query_typed(&terminate_statement(), &params(&old))
        .await?;
    Ok(())
}

/// Finds the sessions that are there. One whose start is hidden counts as there.
fn alive_statement() -> String {
    format!(
        "SELECT o.pid, o.started \
         FROM {OLD} JOIN {SESSIONS} a ON a.pid = o.pid \
         WHERE a.backend_start IS NULL OR {STARTED_US} = o.started"
    )
}

/// Sessions that are still there, and the cluster that reported them.
pub(super) async fn alive(
    control: &Control,
    backends: &[Backend],
    deadline: Instant,
) -> Result<(BTreeSet<Backend>, Cluster), ControlError> {
    let old = arrays(backends);
    let (rows, cluster) = control
        .query_on_cluster(&alive_statement(), &params(&old), deadline)
        .await?;
    let alive: Result<_, _> = rows.iter().map(|row| backend(row, 0)).collect();
    Ok((alive?, cluster))
}

/// Number of sessions that are still there, over a connection that may not serve.
pub(super) async fn count_alive_over(
    client: &Client,
    backends: &[Backend],
) -> Result<usize, ControlError> {
    let old = arrays(backends);
    let rows = client
        .query_typed(&alive_statement(), &params(&old))
        .await?;
    Ok(rows.len())
}

/// A session that was told to end and is still there.
#[derive(Debug, Clone)]
pub(super) struct Holdout {
    pub(super) backend: Backend,
    pub(super) user: String,
    pub(super) state: String,
    pub(super) since: String,
    pub(super) waits_for: String,
    /// In the encoding of the session's database.
    pub(super) query: Vec<u8>,
}

/// For the client that declares. The session's statement is another client's business.
impl fmt::Display for Holdout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = readable(&self.user);
        let pid = self.backend.pid;
        write!(
            f,
            "server process {pid} (user {user}, {} since {})",
            self.state, self.since
        )
    }
}

impl Holdout {
    /// Logs everything known about it.
    pub(super) fn log(&self, scope: &Scope, token: Token) {
        let query = StatementText::new(&self.query, Literals::Remove);
        tracing::warn!(
            %scope,
            token = token.get(),
            backend_pid = self.backend.pid,
            user = readable(&self.user),
            state = self.state,
            since = self.since,
            waits_for = self.waits_for,
            statement = query.as_str(),
            "a server process was told to end and has not ended"
        );
    }
}

/// Details of the first sessions that do not end, those of superusers before others.
pub(super) async fn holdouts(
    control: &Control,
    backends: &[Backend],
    deadline: Instant,
) -> Result<Vec<Holdout>, ControlError> {
    let sql = format!(
        "SELECT o.pid, o.started, \
         pg_catalog.textsend(coalesce(pg_catalog.pg_get_userbyid(a.usesysid)::pg_catalog.text, '?')), \
         coalesce(a.state, '?'), coalesce(pg_catalog.to_char(coalesce(a.state_change, a.backend_start) \
         AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC', '?'), \
         coalesce(a.wait_event_type || ':' || a.wait_event, 'nothing'), \
         pg_catalog.textsend(coalesce(a.query, '')) \
         FROM {OLD} JOIN {SESSIONS} a ON a.pid = o.pid \
         WHERE {STARTED_US} = o.started \
         ORDER BY (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid = a.usesysid) IS NOT TRUE, \
         a.backend_start LIMIT {HOLDOUTS_NAMED}"
    );
    let old = arrays(backends);
    let rows = control.query(&sql, &params(&old), deadline).await?;
    let holdout = |row| {
        Ok(Holdout {
            backend: backend(row, 0)?,
            user: String::from_utf8_lossy(answer(row, 2)?).into_owned(),
            state: answer(row, 3)?,
            since: answer(row, 4)?,
            waits_for: answer(row, 5)?,
            query: answer(row, 6)?,
        })
    };
    rows.iter().map(holdout).collect()
}

/// A text that no other session has sent. A session sends it as an empty statement, and pg_stat_activity shows it as
/// its last query. That works in every state of its transaction, and takes no snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionProbe(String);

impl SessionProbe {
    /// A new probe.
    #[must_use]
    pub fn random() -> Self {
        // Below 100 bytes, the minimum of track_activity_query_size.
        let number: u128 = rand::random();
        Self(format!(
            "/* pgpalisade looks for this session: {number:032x} */"
        ))
    }

    /// Text of the empty statement.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Finds the session that has sent a probe. Its pid alone could be another server's, if the control connection leads
/// elsewhere. With the pid, the function makes one row. The view would make one of every session, which for thousands
/// of them is most of the time of a login.
pub(super) async fn identify(
    control: &Control,
    pid: i32,
    probe: &SessionProbe,
    deadline: Instant,
) -> Result<Identified, DeclareError> {
    let sql = format!(
        "SELECT {STARTED_US}, a.query = $2, a.state = 'disabled' \
         FROM pg_catalog.pg_stat_get_activity($1) a"
    );
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&pid, Type::INT4), (&probe.0, Type::TEXT)];
    let (rows, cluster) = control.query_on_cluster(&sql, &params, deadline).await?;
    let fault = |why| Err(DeclareError::Backend { pid, why });
    let Some(row) = rows.first() else {
        return fault(
            "it is not in pg_stat_activity; a pooler between the proxy and PostgreSQL, or a control connection to \
             another server, hides the real session",
        );
    };
    let started: Option<i64> = answer(row, 0)?;
    let is_its_probe: Option<bool> = answer(row, 1)?;
    let is_untracked: Option<bool> = answer(row, 2)?;
    match (started, is_its_probe, is_untracked) {
        (None, _, _) => {
            fault("its backend_start is hidden; the control role lacks pg_read_all_stats")
        }
        (Some(started_us), Some(true), _) => Ok(Identified {
            backend: Backend { pid, started_us },
            cluster,
        }),
        (_, _, Some(true)) => fault(
            "track_activities is off for it, so it cannot be told apart from one of another server",
        ),
        _ => fault(
            "another session has this id in pg_stat_activity; the control connection leads to a different server, or \
             a pooler is in between",
        ),
    }
}
