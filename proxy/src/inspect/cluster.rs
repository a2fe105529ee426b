//! Queries to the protected cluster.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use pgpalisade_authority::{Backend, Mark, Registered, Scope};
use pgpalisade_takeover::control::{STARTED_US, SYSTEM_IDENTIFIER, answer, row, rows};
use pgpalisade_takeover::{ControlError, witness};
use serde::{Deserialize, Serialize};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client as PgClient, Row};

/// Limit of prepared transactions in a report.
const PREPARED_MAX: i64 = 100;

#[derive(Debug, Clone, Deserialize)]
pub(super) struct ServerInfo {
    pub(super) version: String,
    pub(super) database: String,
    pub(super) system_identifier: u64,
}

pub(super) async fn server(client: &PgClient) -> Result<ServerInfo, ControlError> {
    // Debian appends its own version in brackets.
    let sql = format!(
        "SELECT pg_catalog.split_part(pg_catalog.current_setting('server_version'), ' ', 1) AS version, \
            pg_catalog.current_database() AS database, {SYSTEM_IDENTIFIER} AS system_identifier \
         FROM pg_catalog.pg_control_system()"
    );
    row(client, &sql).await
}

/// Start of a session, in microseconds since the Unix epoch. `None` if missing or hidden.
pub(super) async fn started(client: &PgClient, pid: i32) -> Result<Option<i64>, ControlError> {
    let sql = format!("SELECT {STARTED_US} FROM pg_catalog.pg_stat_activity a WHERE a.pid = $1");
    let rows = client.query_typed(&sql, &[(&pid, Type::INT4)]).await?;
    rows.first().map_or(Ok(None), |row| answer(row, 0))
}

pub(super) async fn superusers(client: &PgClient) -> Result<Vec<String>, ControlError> {
    let sql = "SELECT DISTINCT r.rolname::pg_catalog.text \
        FROM pg_catalog.pg_stat_activity a JOIN pg_catalog.pg_roles r ON r.oid = a.usesysid \
        WHERE r.rolsuper AND a.backend_type = 'client backend' ORDER BY 1";
    texts(client.query_typed(sql, &[]).await)
}

fn texts(rows: Result<Vec<Row>, tokio_postgres::Error>) -> Result<Vec<String>, ControlError> {
    rows?.iter().map(|row| answer(row, 0)).collect()
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Client {
    pub(super) pid: i32,
    pub(super) role: String,
    /// `None` for a unix socket.
    pub(super) address: Option<IpAddr>,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{} from {address}", self.role),
            None => write!(f, "{} from a unix socket", self.role),
        }
    }
}

/// Whether the session runs through a pgpalisade: PostgreSQL has no such setting.
pub(super) async fn is_pgpalisade(client: &PgClient) -> Result<bool, ControlError> {
    match client.simple_query("SHOW fencing.status").await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn clients(client: &PgClient) -> Result<Vec<Client>, ControlError> {
    let sql = "SELECT a.pid, r.rolname AS role, pg_catalog.host(a.client_addr) AS address \
        FROM pg_catalog.pg_stat_activity a JOIN pg_catalog.pg_roles r ON r.oid = a.usesysid \
        WHERE a.backend_type = 'client backend' AND (NOT r.rolsuper OR r.rolname = current_user)";
    rows(client, sql, &[]).await
}

/// Roles that may log in, except superusers.
pub(super) async fn roles(client: &PgClient) -> Result<Vec<String>, ControlError> {
    let sql = "SELECT rolname::pg_catalog.text FROM pg_catalog.pg_roles WHERE rolcanlogin AND NOT rolsuper";
    texts(client.query_typed(sql, &[]).await)
}

pub(super) async fn groups(client: &PgClient, role: &str) -> Result<Vec<String>, ControlError> {
    let sql = "SELECT rolname::pg_catalog.text FROM pg_catalog.pg_roles \
        WHERE pg_catalog.pg_has_role($1::pg_catalog.name, oid, 'MEMBER')";
    texts(client.query_typed(sql, &[(&role, Type::TEXT)]).await)
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct HbaRule {
    pub(super) line: i32,
    pub(super) users: Vec<String>,
    /// An address, the name of a host, or `all`, `samehost`, `samenet`.
    pub(super) address: String,
    pub(super) netmask: Option<IpAddr>,
    pub(super) rejects: bool,
}

impl HbaRule {
    pub(super) fn is_for_all_addresses(&self) -> bool {
        self.address == "all"
    }

    /// The address, if the line matches only one.
    pub(super) fn single_address(&self) -> Option<IpAddr> {
        let is_whole = match self.netmask? {
            IpAddr::V4(mask) => mask.is_broadcast(),
            IpAddr::V6(mask) => mask.to_bits() == u128::MAX,
        };
        self.address.parse().ok().filter(|_| is_whole)
    }
}

/// The lines of pg_hba.conf for TCP connections to databases; `None` if the role may not read them.
pub(super) async fn hba_rules(client: &PgClient) -> Result<Option<Vec<HbaRule>>, ControlError> {
    let sql = "SELECT pg_catalog.has_table_privilege('pg_catalog.pg_hba_file_rules', 'SELECT') \
        AND pg_catalog.has_function_privilege('pg_catalog.pg_hba_file_rules()', 'EXECUTE')";
    let row = client.query_typed_one(sql, &[]).await?;
    if !answer(&row, 0)? {
        return Ok(None);
    }
    let sql = "SELECT line_number AS line, user_name AS users, address, netmask, auth_method = 'reject' AS rejects \
        FROM pg_catalog.pg_hba_file_rules \
        WHERE error IS NULL AND type <> 'local' AND database <> '{replication}' ORDER BY line_number";
    rows(client, sql, &[]).await.map(Some)
}

pub(super) async fn places(client: &PgClient) -> Result<i64, ControlError> {
    let sql = "SELECT pg_catalog.sum(CASE name WHEN 'max_connections' THEN 1 ELSE -1 END \
        * setting::pg_catalog.int8)::pg_catalog.int8 FROM pg_catalog.pg_settings \
        WHERE name IN ('max_connections', 'superuser_reserved_connections', 'reserved_connections')";
    let row = client.query_typed_one(sql, &[]).await?;
    answer(&row, 0)
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PreparedTransaction {
    pub(crate) gid: String,
    pub(crate) owner: String,
    pub(crate) database: String,
    /// Time of PREPARE TRANSACTION, in microseconds since the Unix epoch.
    pub(crate) prepared_us: i64,
}

pub(super) async fn prepared(client: &PgClient) -> Result<Vec<PreparedTransaction>, ControlError> {
    let sql = "SELECT gid, owner, database, \
        (extract(epoch FROM prepared) * 1000000)::pg_catalog.int8 AS prepared_us \
        FROM pg_catalog.pg_prepared_xacts ORDER BY prepared LIMIT $1";
    rows(client, sql, &[(&PREPARED_MAX, Type::INT8)]).await
}

/// The witness of the marks, as far as this role sees it.
#[derive(Debug, Clone)]
pub(super) enum Witness {
    Kept(HashMap<Scope, Mark>),
    /// This role can use none. Says whether a proxy could create it.
    None {
        can_be_made: bool,
    },
}

pub(super) async fn witness(client: &PgClient) -> Result<Witness, ControlError> {
    if witness::is_usable(client).await? {
        return witness::read(client).await.map(Witness::Kept);
    }
    // A proxy cannot use a schema of a superuser.
    let sql = "SELECT pg_catalog.to_regnamespace('pgpalisade') IS NULL \
        AND pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')";
    let row = client.query_typed_one(sql, &[]).await?;
    let can_be_made = answer(&row, 0)?;
    Ok(Witness::None { can_be_made })
}

/// Registered sessions that still exist, or whose start is hidden.
pub(super) async fn alive(
    client: &PgClient,
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
