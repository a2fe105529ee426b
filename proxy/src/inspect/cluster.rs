//! Questions to the protected cluster.

use std::collections::{BTreeSet, HashMap};

use pgpalisade_authority::{Backend, Mark, Registered, Scope};
use serde::Serialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::takeover::control::{STARTED_US, answer};
use crate::takeover::{ControlError, witness};

/// Prepared transactions that are named.
const PREPARED_MAX: i64 = 100;

/// Who answers.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) version: String,
    pub(super) database: String,
    /// The address and port that the server sees the connection come from; both `None` for a unix socket.
    pub(super) client: (Option<String>, Option<i32>),
    pub(super) system_identifier: u64,
}

/// Who answers, as the connection itself sees it.
pub(super) async fn server(client: &Client) -> Result<Server, ControlError> {
    let sql = "SELECT pg_catalog.current_setting('server_version'), \
        pg_catalog.current_database()::pg_catalog.text, pg_catalog.host(a.client_addr), \
        NULLIF(a.client_port, -1), \
        (SELECT system_identifier FROM pg_catalog.pg_control_system()) \
        FROM pg_catalog.pg_stat_activity a WHERE a.pid = pg_catalog.pg_backend_pid()";
    let rows = client.query_typed(sql, &[]).await?;
    let row = rows.first().ok_or(ControlError::Lost)?;
    let system_identifier: i64 = answer(row, 4)?;
    let version: String = answer(row, 0)?;
    Ok(Server {
        // Debian adds its own in brackets.
        version: version.split(' ').next().unwrap_or_default().to_owned(),
        database: answer(row, 1)?,
        client: (answer(row, 2)?, answer(row, 3)?),
        system_identifier: system_identifier.cast_unsigned(),
    })
}

/// When a session began, microseconds since the Unix epoch. `None`: there is no such session, or it is hidden.
pub(super) async fn started(client: &Client, pid: i32) -> Result<Option<i64>, ControlError> {
    let sql = format!("SELECT {STARTED_US} FROM pg_catalog.pg_stat_activity a WHERE a.pid = $1");
    let rows = client.query_typed(&sql, &[(&pid, Type::INT4)]).await?;
    rows.first().map_or(Ok(None), |row| answer(row, 0))
}

/// Superusers that are connected as clients now.
pub(super) async fn superusers(client: &Client) -> Result<Vec<String>, ControlError> {
    let sql = "SELECT DISTINCT r.rolname::pg_catalog.text \
        FROM pg_catalog.pg_stat_activity a JOIN pg_catalog.pg_roles r ON r.oid = a.usesysid \
        WHERE r.rolsuper AND a.backend_type = 'client backend' ORDER BY 1";
    let rows = client.query_typed(sql, &[]).await?;
    rows.iter().map(|row| answer(row, 0)).collect()
}

/// Connections that roles without special rights can have at one time.
pub(super) async fn places(client: &Client) -> Result<i64, ControlError> {
    let sql = "SELECT pg_catalog.sum(CASE name WHEN 'max_connections' THEN 1 ELSE -1 END \
        * setting::pg_catalog.int8)::pg_catalog.int8 FROM pg_catalog.pg_settings \
        WHERE name IN ('max_connections', 'superuser_reserved_connections', 'reserved_connections')";
    let rows = client.query_typed(sql, &[]).await?;
    answer(rows.first().ok_or(ControlError::Lost)?, 0)
}

/// A transaction that outlives its session.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Prepared {
    pub(crate) gid: String,
    pub(crate) owner: String,
    pub(crate) database: String,
    /// When, microseconds since the Unix epoch.
    pub(crate) prepared_us: i64,
}

/// The oldest prepared transactions, up to a limit.
pub(super) async fn prepared(client: &Client) -> Result<Vec<Prepared>, ControlError> {
    let sql = "SELECT gid, owner::pg_catalog.text, database::pg_catalog.text, \
        (extract(epoch FROM prepared) * 1000000)::pg_catalog.int8 \
        FROM pg_catalog.pg_prepared_xacts ORDER BY prepared LIMIT $1";
    let rows = client
        .query_typed(sql, &[(&PREPARED_MAX, Type::INT8)])
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Prepared {
                gid: answer(row, 0)?,
                owner: answer(row, 1)?,
                database: answer(row, 2)?,
                prepared_us: answer(row, 3)?,
            })
        })
        .collect()
}

/// The witness of the marks, as far as this role sees it.
#[derive(Debug, Clone)]
pub(super) enum Witness {
    /// It is kept.
    Kept(HashMap<Scope, Mark>),
    /// There is none that this role may use. Whether a proxy could make it.
    None { can_be_made: bool },
}

/// Reads the witness.
pub(super) async fn witness(client: &Client) -> Result<Witness, ControlError> {
    if witness::is_usable(client).await? {
        return witness::read(client).await.map(Witness::Kept);
    }
    // Not where the schema is there and belongs to a superuser.
    let sql = "SELECT pg_catalog.to_regnamespace('pgpalisade') IS NULL \
        AND pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')";
    let rows = client.query_typed(sql, &[]).await?;
    let can_be_made = answer(rows.first().ok_or(ControlError::Lost)?, 0)?;
    Ok(Witness::None { can_be_made })
}

/// Which of the registered sessions are still there. One whose start is hidden counts as there.
pub(super) async fn alive(
    client: &Client,
    sessions: &[(Scope, Registered)],
) -> Result<BTreeSet<Backend>, ControlError> {
    let sql = format!("SELECT a.pid, {STARTED_US} FROM pg_catalog.pg_stat_get_activity(NULL) a");
    let rows = client.query_typed(&sql, &[]).await?;
    let mut seen: HashMap<i32, Option<i64>> = HashMap::with_capacity(rows.len());
    for row in &rows {
        if let (Some(pid), started) = (answer(row, 0)?, answer(row, 1)?) {
            seen.insert(pid, started);
        }
    }
    let is_alive = |backend: &Backend| {
        let started = seen.get(&backend.pid);
        started.is_some_and(|started| started.is_none_or(|us| us == backend.started_us))
    };
    let registered = sessions.iter().map(|(_, session)| session.backend);
    Ok(registered.filter(is_alive).collect())
}
