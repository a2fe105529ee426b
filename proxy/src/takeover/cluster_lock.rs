//! One cluster, one authority: the advisory lock by which the proxies of a cluster see each other.
//!
//! Every control connection takes a session lock (fixed class, identity of its authority as object) and
//! *then* looks who
//! else holds one. Of two that come at once, at least one sees the other. Locks are kept per database, so
//! the look covers all
//! of them (<https://www.postgresql.org/docs/15/view-pg-locks.html>).

use pgpalisade_authority::AuthorityId;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::control::answer;
use super::error::{ControlError, Holder, StartError};

/// "pgpa": the class of our locks.
const CLASS: u32 = 0x7067_7061;

/// How the lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreLock {
    /// The store serves one proxy (embedded).
    Exclusive,
    /// Several proxies share the store.
    Shared,
}

/// A proxy of the cluster, by its lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proxy {
    /// The first 32 bits of its authority's identity.
    pub(crate) authority: u32,
    /// Its control connection.
    pub(crate) holder: Holder,
    /// When that was made, microseconds since the Unix epoch; `None` where it is hidden.
    pub(crate) since: Option<i64>,
}

const LOOK: &str = "SELECT l.objid::pg_catalog.int8, l.pid, a.application_name, \
    a.client_addr::pg_catalog.text, d.datname::pg_catalog.text, \
    (extract(epoch FROM a.backend_start) * 1000000)::pg_catalog.int8 \
    FROM pg_catalog.pg_locks l \
    LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
    LEFT JOIN pg_catalog.pg_database d ON d.oid = l.database \
    WHERE l.locktype = 'advisory' AND l.classid = $1 AND l.objsubid = 2 AND l.granted \
    AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid() ORDER BY l.pid";

/// Takes the lock and looks. On an error the caller closes the connection, which frees the lock.
pub(super) async fn take(
    client: &Client,
    ours: AuthorityId,
    kind: StoreLock,
) -> Result<(), StartError> {
    let take = match kind {
        StoreLock::Exclusive => "SELECT pg_catalog.pg_try_advisory_lock($1, $2)",
        StoreLock::Shared => "SELECT pg_catalog.pg_try_advisory_lock_shared($1, $2)",
    };
    let (class, object) = (CLASS.cast_signed(), ours.short().cast_signed());
    let rows = client
        .query_typed(take, &[(&class, Type::INT4), (&object, Type::INT4)])
        .await
        .map_err(server_error)?;
    let row = rows
        .first()
        .ok_or(StartError::Control(ControlError::Lost))?;
    let taken: bool = answer(row, 0).map_err(StartError::Control)?;
    let mut same = None;
    for proxy in proxies(client).await.map_err(StartError::Control)? {
        if proxy.authority != ours.short() {
            return Err(StartError::OtherAuthority {
                ours,
                theirs: proxy.authority,
                holder: proxy.holder,
            });
        }
        same = Some(proxy.holder);
    }
    match (taken, kind, same) {
        (true, StoreLock::Shared, _) | (true, StoreLock::Exclusive, None) => Ok(()),
        // Held exclusively, here or in another database.
        (_, _, holder) => Err(StartError::Taken {
            ours,
            holder: holder.unwrap_or_default(),
        }),
    }
}

/// Every other proxy of the cluster. Takes no lock.
pub(crate) async fn proxies(client: &Client) -> Result<Vec<Proxy>, ControlError> {
    let rows = client.query_typed(LOOK, &[(&CLASS, Type::OID)]).await?;
    rows.iter().map(read).collect()
}

fn read(row: &tokio_postgres::Row) -> Result<Proxy, ControlError> {
    let authority: i64 = answer(row, 0)?;
    Ok(Proxy {
        authority: u32::try_from(authority).unwrap_or_default(),
        holder: Holder {
            pid: answer(row, 1)?,
            application_name: answer(row, 2)?,
            client_addr: answer(row, 3)?,
            database: answer(row, 4)?,
        },
        since: answer(row, 5)?,
    })
}

fn server_error(error: tokio_postgres::Error) -> StartError {
    StartError::Control(error.into())
}
