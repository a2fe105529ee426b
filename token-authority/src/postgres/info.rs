//! Server of a PostgreSQL store, as `pgpalisade check` shows it.

use tokio_postgres::types::Type;

use super::connection::{ConnectionError, Purpose, StoreConnection, get};
use super::open::{self, PostgresOpenError};
use super::options::{Options, SCHEMA};

/// Server with a store, or for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    /// As `server_version`.
    pub version: String,
    /// The server is a standby, so no store can be opened here.
    pub in_recovery: bool,
    /// Cluster of the store, `None` if the role may not ask. If it is the protected cluster, the store is lost with a
    /// lost primary, unless replication is synchronous.
    pub system_identifier: Option<u64>,
    /// As the setting. If empty, no commit waits for a standby.
    pub synchronous_standby_names: String,
    /// As the session would have it; the store raises it to at least `on`.
    pub synchronous_commit: String,
    /// Whether commits reach the disk.
    pub fsync: String,
    /// Whether the schema of the store is there.
    pub schema_exists: bool,
}

impl ServerInfo {
    /// Whether commits wait for a standby.
    pub fn replicates_synchronously(&self) -> bool {
        !self.synchronous_standby_names.trim().is_empty()
    }
}

/// Inspects the server without changing anything. Errors: as [`super::Postgres::connect`], but a standby is allowed.
/// Takes at most twice the options' timeout.
pub async fn inspect(options: &Options) -> Result<ServerInfo, PostgresOpenError> {
    look(options)
        .await
        .map_err(|error| open::open_error(options, error))
}

async fn look(options: &Options) -> Result<ServerInfo, ConnectionError> {
    let link = StoreConnection::connect(options, Purpose::Inspect).await?;
    let bound = options.timeout();
    let asked = "SELECT current_setting('server_version'), pg_is_in_recovery(), \
                        current_setting('synchronous_standby_names'), current_setting('synchronous_commit'), \
                        current_setting('fsync'), to_regnamespace($1) IS NOT NULL";
    let rows = link.ask(bound, asked, &[(&SCHEMA, Type::TEXT)]).await?;
    let row = rows.first().ok_or_else(ConnectionError::no_row)?;
    let cluster = "SELECT system_identifier FROM pg_control_system()";
    let system_identifier = match link.ask(bound, cluster, &[]).await {
        Ok(rows) => {
            let signed: i64 = get(rows.first().ok_or_else(ConnectionError::no_row)?, 0)?;
            Some(signed.cast_unsigned())
        }
        // EXECUTE on the function can be revoked.
        Err(ConnectionError::Refused(_)) => None,
        Err(error) => return Err(error),
    };
    Ok(ServerInfo {
        version: get(row, 0)?,
        in_recovery: get(row, 1)?,
        system_identifier,
        synchronous_standby_names: get(row, 2)?,
        synchronous_commit: get(row, 3)?,
        fsync: get(row, 4)?,
        schema_exists: get(row, 5)?,
    })
}
