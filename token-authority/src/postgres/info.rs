//! What `pgpalisade check` tells about the server of a PostgreSQL store.

use tokio_postgres::types::Type;

use super::link::{Link, LinkError, Purpose, get};
use super::open::{self, OpenError};
use super::options::{Options, SCHEMA};

/// The server that a store is on, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    /// As `server_version`.
    pub version: String,
    /// A standby: no store can be opened here.
    pub in_recovery: bool,
    /// Which cluster the store is in, `None` where the role may not ask. The same as the protected cluster's means
    /// that the store is inside of it, and lost with a primary that is lost, unless replication is synchronous.
    pub system_identifier: Option<u64>,
    /// As the setting; empty: no commit waits for a standby.
    pub synchronous_standby_names: String,
    /// As the session would have it; the store makes it at least `on`.
    pub synchronous_commit: String,
    /// Whether commits reach the disk at all.
    pub fsync: String,
    /// Whether the schema of the store is there.
    pub schema_exists: bool,
}

impl ServerInfo {
    /// Whether a commit waits until a standby has it too.
    pub fn replicates_synchronously(&self) -> bool {
        !self.synchronous_standby_names.trim().is_empty()
    }
}

/// Looks at the server. Changes nothing, and makes nothing. Errors: as [`super::Postgres::connect`], but a standby
/// is none. Bounded by twice the options' timeout.
pub async fn inspect(options: &Options) -> Result<ServerInfo, OpenError> {
    look(options)
        .await
        .map_err(|error| open::open_error(options, error))
}

async fn look(options: &Options) -> Result<ServerInfo, LinkError> {
    let link = Link::connect(options, Purpose::Inspect).await?;
    let bound = options.timeout();
    let asked = "SELECT current_setting('server_version'), pg_is_in_recovery(), \
                        current_setting('synchronous_standby_names'), current_setting('synchronous_commit'), \
                        current_setting('fsync'), to_regnamespace($1) IS NOT NULL";
    let rows = link.ask(bound, asked, &[(&SCHEMA, Type::TEXT)]).await?;
    let row = rows.first().ok_or_else(LinkError::no_row)?;
    let cluster = "SELECT system_identifier FROM pg_control_system()";
    let system_identifier = match link.ask(bound, cluster, &[]).await {
        Ok(rows) => {
            let signed: i64 = get(rows.first().ok_or_else(LinkError::no_row)?, 0)?;
            Some(signed.cast_unsigned())
        }
        // EXECUTE on the function can be revoked.
        Err(LinkError::Refused(_)) => None,
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
