//! Preparation of a control connection before it may serve.

use pgpalisade_authority::{Backend, Cluster, Enrolled};
use serde::Deserialize;
use tokio_postgres::Client;

use super::WitnessMode;
use super::connection::ControlConfig;
use super::control::{STARTED_US, SYSTEM_IDENTIFIER, row};
use super::control_error::ControlError;
use super::error::StartError;
use super::witness;
use super::{cluster_lock, sessions};

/// Settings, rights, the lock, the cluster and the witness, in this order: only the proxies of this authority may put
/// a cluster on record. Returns the server process of the connection, its cluster, and whether that has a witness.
pub(super) async fn prepare(
    config: &ControlConfig,
    client: &Client,
    previous: Option<Backend>,
) -> Result<(Backend, Cluster, bool), StartError> {
    // This connection only writes the copy of the marks. That admits nothing, so it does not wait for a standby.
    // Proxies write it at the same time, which must not fail for an old snapshot.
    let settings = format!(
        "SET statement_timeout = {}; SET idle_in_transaction_session_timeout = 0; \
         SET default_transaction_read_only = off; SET synchronous_commit = local; \
         SET default_transaction_isolation = 'read committed'",
        config.options.timeout.as_millis()
    );
    client.batch_execute(&settings).await?;
    witness::prepare(client).await?;
    let backend = check_rights(client).await?;
    if let Some(previous) = previous {
        // This proxy's lost session may still hold the lock, if the server has not noticed.
        sessions::terminate_over(client, &[previous]).await?;
    }
    cluster_lock::take(
        client,
        config.authority.identity(),
        config.options.store_lock,
    )
    .await?;
    let cluster = cluster(client).await?;
    enrol(config, cluster).await?;
    let has_witness = match config.options.witness {
        WitnessMode::Auto => {
            let compared = witness::compare(client, config.authority.as_ref()).await;
            compared.map_err(|error| match error {
                StartError::Control(error) => StartError::Witness(error),
                other => other,
            })?
        }
        WitnessMode::Off => false,
    };
    Ok((backend, cluster, has_witness))
}

/// Asks the authority whether this cluster is the one on record, and notes the answer.
async fn enrol(config: &ControlConfig, cluster: Cluster) -> Result<(), StartError> {
    let enrolled = config.authority.enrol(cluster).await?;
    let known = config.marks.cluster();
    match enrolled {
        Enrolled::Accepted => {
            known.note(cluster, cluster);
            Ok(())
        }
        Enrolled::Refused { recorded } => {
            // Existing sessions may be on another host than this one.
            known.note(config.primary_terms.cluster().unwrap_or(cluster), recorded);
            config.primary_terms.note(recorded);
            Err(StartError::WrongCluster {
                ours: cluster,
                recorded,
            })
        }
    }
}

/// Identity of the cluster, its timeline and the start of its server. The timeline is the one that WAL is written to
/// now, since pg_control_checkpoint() lags after a promotion. Must not be asked of a standby.
pub async fn cluster(client: &Client) -> Result<Cluster, ControlError> {
    let sql = format!(
        "SELECT {SYSTEM_IDENTIFIER} AS system_identifier, \
            ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))\
            ::pg_catalog.bit(32)::pg_catalog.int8 AS timeline, \
            (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::pg_catalog.int8 AS postmaster_us \
         FROM pg_catalog.pg_control_system()"
    );
    row(client, &sql).await
}

/// Identity and rights of a connection.
#[derive(Deserialize)]
pub struct RoleRights {
    /// Whether the server is a standby.
    pub standby: bool,
    /// Name of its role.
    pub role: String,
    /// Whether the role is a superuser.
    pub superuser: bool,
    /// Memberships that a takeover needs and the role lacks.
    pub missing: Vec<String>,
    /// Server process of the connection.
    #[serde(flatten)]
    pub backend: Backend,
    quoted: String,
}

impl RoleRights {
    /// Statement that grants what is missing. pg_monitor includes pg_read_all_stats, which administrators of hosted
    /// servers cannot grant from PostgreSQL 16 on: they have the ADMIN option on pg_monitor only.
    pub fn grant(&self) -> String {
        let granted = self.missing.iter().map(|role| match role.as_str() {
            "pg_read_all_stats" => "pg_monitor",
            other => other,
        });
        let granted: Vec<&str> = granted.collect();
        format!("GRANT {} TO {}", granted.join(", "), self.quoted)
    }
}

/// Checks the rights and returns the server process of the connection.
pub(super) async fn check_rights(client: &Client) -> Result<Backend, StartError> {
    let rights = rights(client).await?;
    if rights.standby {
        return Err(StartError::Standby);
    }
    if !rights.missing.is_empty() {
        return Err(StartError::Rights {
            grant: rights.grant(),
            missing: rights.missing.join(" and "),
            role: rights.role,
        });
    }
    Ok(rights.backend)
}

/// Reads the identity and rights of the connection.
pub async fn rights(client: &Client) -> Result<RoleRights, ControlError> {
    let sql = format!(
        "SELECT pg_catalog.pg_is_in_recovery() AS standby, current_user AS role, \
         pg_catalog.quote_ident(current_user) AS quoted, r.rolsuper AS superuser, \
         ARRAY(SELECT m FROM (VALUES ('pg_signal_backend'), ('pg_read_all_stats')) AS needed(m) \
            WHERE NOT r.rolsuper AND NOT pg_catalog.pg_has_role(current_user, m, 'USAGE')) AS missing, \
         a.pid, {STARTED_US} AS started_us \
         FROM pg_catalog.pg_roles r, pg_catalog.pg_stat_activity a \
         WHERE r.rolname = current_user AND a.pid = pg_catalog.pg_backend_pid()"
    );
    row(client, &sql).await
}
