//! Reads a PostgreSQL store and its server, as `pgpalisade check` shows them, without changing either.

use std::time::Duration;

use super::connection::{ConnectionError, Purpose, StoreConnection, first, get};
use super::open::{OpenFault, find};
use super::options::Options;
use super::steps;
use crate::{AuthorityId, Contents, OpenError};

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
    /// Whether commits reach the disk.
    pub fsync: String,
}

impl ServerInfo {
    /// Whether commits wait for a standby.
    pub fn replicates_synchronously(&self) -> bool {
        !self.synchronous_standby_names.trim().is_empty()
    }
}

/// Reads the server, and the store, if any. Creates nothing and leaves no trace. Takes at most a few times the options'
/// timeout.
///
/// # Errors
///
/// As [`super::Postgres::connect`], but a standby is allowed.
pub async fn read(options: &Options) -> Result<(ServerInfo, Option<Contents>), OpenError> {
    let read = read_from(options).await;
    read.map_err(|fault| fault.at(options))
}

async fn read_from(options: &Options) -> Result<(ServerInfo, Option<Contents>), OpenFault> {
    let link = StoreConnection::connect(options, Purpose::Inspect).await?;
    let bound = options.timeout;
    let server = server(&link, bound).await?;
    let contents = match find(&link, bound).await? {
        Some(identity) => Some(contents(&link, bound, identity).await?),
        None => None,
    };
    Ok((server, contents))
}

async fn server(link: &StoreConnection, bound: Duration) -> Result<ServerInfo, ConnectionError> {
    let asked = "SELECT current_setting('server_version'), pg_is_in_recovery(), \
                 current_setting('synchronous_standby_names'), current_setting('fsync')";
    let rows = link.ask(bound, asked, &[]).await?;
    let row = first(&rows)?;
    let cluster = "SELECT system_identifier FROM pg_control_system()";
    let system_identifier = match link.ask(bound, cluster, &[]).await {
        Ok(rows) => {
            let signed: i64 = get(first(&rows)?, 0)?;
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
        fsync: get(row, 3)?,
    })
}

async fn contents(
    link: &StoreConnection,
    bound: Duration,
    identity: AuthorityId,
) -> Result<Contents, ConnectionError> {
    // Sessions first: the mark read after them is never below one of their tokens.
    let sessions = link.all(bound, &steps::all_sessions()).await?;
    let clusters = link.all(bound, &steps::all_clusters()).await?;
    Ok(Contents {
        identity,
        cluster: clusters.into_iter().next().flatten(),
        marks: link.all(bound, &steps::all_marks()).await?,
        sessions,
        takeovers: steps::takeovers(link.all(bound, &steps::histories(None)).await?),
    })
}
