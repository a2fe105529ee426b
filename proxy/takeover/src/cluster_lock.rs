//! One cluster, one authority: the advisory lock by which the proxies of a cluster see each other.
//!
//! Every control connection takes a session lock (fixed class, identity of its authority as object) and *then* looks
//! for other holders. Of two that come at once, at least one sees the other. Locks are kept per database, so the look
//! covers all of them (<https://www.postgresql.org/docs/15/view-pg-locks.html>).
//!
//! Any role may take any advisory lock. So a lock counts only if its holder has the rights of a control role. If
//! another session is in the way, the lock is taken in one of many other classes, which nobody can guess.

use pgpalisade_authority::AuthorityId;
use serde::Deserialize;
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::control::{Control, answer, rows};
use super::control_error::ControlError;
use super::error::{LockHolder, StartError};

/// "pgpa": the class of the lock.
const CLASS: u32 = 0x7067_7061;

/// "pg" and any 16 bits: the classes used if a session without the rights holds the lock in the first one.
const SPARE_CLASSES: std::ops::RangeInclusive<u32> = 0x7067_0000..=0x7067_ffff;

/// Number of spare classes that are tried. To hold them all takes more locks than a server has room for.
const SPARE_TRIES: usize = 8;

/// Mode of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum StoreLock {
    /// The store serves one proxy (embedded).
    Exclusive,
    /// Several proxies share the store.
    Shared,
}

/// A proxy of the cluster, as its lock shows it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Proxy {
    /// The first 32 bits of its authority's identity.
    pub authority: u32,
    /// Its control connection.
    #[serde(flatten)]
    pub holder: LockHolder,
    /// Start of its control connection, in microseconds since the Unix epoch; `None` if it is hidden.
    pub since: Option<i64>,
    pub(crate) lock: StoreLock,
    user: Option<String>,
    /// Whether its control connection leads to another database than the one that was asked.
    is_elsewhere: bool,
    /// Whether this is the proxy whose control connection was asked.
    pub is_asked: bool,
}

/// A session with the rights of a control role is taken for a proxy; an application should not have them.
const MAY_SERVE: &str = "coalesce(a.usesysid = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user) \
    OR (pg_catalog.pg_has_role(a.usesysid, 'pg_signal_backend', 'USAGE') \
    AND pg_catalog.pg_has_role(a.usesysid, 'pg_read_all_stats', 'USAGE')), false)";

const LOOK: &str = "l.objid::pg_catalog.int8 AS authority, l.pid, a.application_name, \
    a.client_addr::pg_catalog.text AS client_addr, d.datname AS database, \
    (extract(epoch FROM a.backend_start) * 1000000)::pg_catalog.int8 AS since, \
    CASE l.mode WHEN 'ExclusiveLock' THEN 'Exclusive' ELSE 'Shared' END AS lock, a.usename AS \"user\", \
    l.pid IS NOT DISTINCT FROM pg_catalog.pg_backend_pid() AS is_asked, \
    d.datname IS DISTINCT FROM pg_catalog.current_database() AS is_elsewhere \
    FROM pg_catalog.pg_locks l \
    LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
    LEFT JOIN pg_catalog.pg_database d ON d.oid = l.database \
    WHERE l.locktype = 'advisory' AND l.classid BETWEEN $1 AND $2 AND l.objsubid = 2 AND l.granted";

/// Parameters of [`LOOK`] for every class.
const CLASSES: [(&(dyn ToSql + Sync), Type); 2] = [
    (SPARE_CLASSES.start(), Type::OID),
    (SPARE_CLASSES.end(), Type::OID),
];

/// Leaves out the session that asks.
const OTHERS: &str = "l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()";

/// Takes the lock and looks for others. On an error the caller closes the connection, which frees the lock.
pub(super) async fn take(
    client: &Client,
    ours: AuthorityId,
    kind: StoreLock,
) -> Result<(), StartError> {
    let taken = try_lock(client, CLASS, ours, kind).await?;
    look_around(client, ours, kind).await?;
    if taken {
        return Ok(());
    }
    // Another session excludes this one, here or in another database, and is no proxy: it lacks the rights.
    take_spare(client, ours, kind).await?;
    look_around(client, ours, kind).await
}

/// Takes the lock in a class that nobody can have expected.
async fn take_spare(client: &Client, ours: AuthorityId, kind: StoreLock) -> Result<(), StartError> {
    let squatters = strangers(client, ours).await?;
    let squatter = squatters.into_iter().next();
    let (holder, user) = squatter.map_or_else(Default::default, |one| (one.holder, one.user));
    tracing::warn!(
        holder = %holder,
        user = user.unwrap_or_default(),
        "a session without the rights of a control role holds the lock by which proxies find each other; taking \
            another lock"
    );
    for _ in 0..SPARE_TRIES {
        let class = rand::random_range(SPARE_CLASSES);
        if class != CLASS && try_lock(client, class, ours, kind).await? {
            return Ok(());
        }
    }
    Err(StartError::Taken { ours, holder })
}

async fn try_lock(
    client: &Client,
    class: u32,
    ours: AuthorityId,
    kind: StoreLock,
) -> Result<bool, ControlError> {
    let take = match kind {
        StoreLock::Exclusive => "SELECT pg_catalog.pg_try_advisory_lock($1, $2)",
        StoreLock::Shared => "SELECT pg_catalog.pg_try_advisory_lock_shared($1, $2)",
    };
    let (class, object) = (class.cast_signed(), ours.short().cast_signed());
    let row = client
        .query_typed_one(take, &[(&class, Type::INT4), (&object, Type::INT4)])
        .await?;
    answer(&row, 0)
}

/// Looks for proxies that exclude this one. Locks of different classes do not exclude each other, so what they would
/// exclude is decided here.
async fn look_around(
    client: &Client,
    ours: AuthorityId,
    kind: StoreLock,
) -> Result<(), StartError> {
    let mut in_the_way = None;
    let proxies = proxies(client).await?;
    for proxy in &proxies {
        if proxy.authority != ours.short() {
            return Err(StartError::OtherAuthority {
                ours,
                theirs: proxy.authority,
                holder: proxy.holder.clone(),
            });
        }
        if [kind, proxy.lock].contains(&StoreLock::Exclusive) {
            in_the_way = Some(proxy.holder.clone());
        }
    }
    match in_the_way {
        None => share_database(&proxies),
        Some(holder) => Err(StartError::Taken { ours, holder }),
    }
}

/// Checks that the other proxies of the cluster have their witness in the database that was asked: two witnesses would
/// each have a part of the marks.
///
/// # Errors
///
/// [`StartError::OtherDatabase`].
pub fn share_database(others: &[Proxy]) -> Result<(), StartError> {
    let elsewhere = others.iter().find(|proxy| proxy.is_elsewhere);
    elsewhere.map_or(Ok(()), |proxy| {
        let holder = proxy.holder.clone();
        Err(StartError::OtherDatabase { holder })
    })
}

/// Every other proxy of the cluster. Takes no lock.
pub async fn proxies(client: &Client) -> Result<Vec<Proxy>, ControlError> {
    let sql = format!("SELECT {LOOK} AND {OTHERS} AND {MAY_SERVE} ORDER BY l.pid");
    rows(client, &sql, &CLASSES).await
}

/// Every proxy of the cluster, including the one with this control connection.
pub(super) async fn all(control: &Control, deadline: Instant) -> Result<Vec<Proxy>, ControlError> {
    let sql = format!("SELECT {LOOK} AND {MAY_SERVE} ORDER BY l.pid");
    control.rows(&sql, &CLASSES, deadline).await
}

/// A holder of the lock that is no proxy.
async fn strangers(client: &Client, ours: AuthorityId) -> Result<Vec<Proxy>, ControlError> {
    let sql = format!(
        "SELECT {LOOK} AND {OTHERS} AND NOT {MAY_SERVE} AND l.objid = $3 ORDER BY l.pid LIMIT 1"
    );
    let params: [(&(dyn ToSql + Sync), Type); 3] = [
        (&CLASS, Type::OID),
        (&CLASS, Type::OID),
        (&ours.short(), Type::OID),
    ];
    rows(client, &sql, &params).await
}
