//! One control connection: how it is made.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{Authority, Backend, Cluster};
use pgpalisade_fence::mark_cache::MarkCache;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout};
use tokio_postgres::Client;

use super::control_error::ControlError;
use super::error::StartError;
use super::hosts::{self, HostAddress, Open};
use super::options::TakeoverOptions;
use super::primary_term::{PrimaryTerm, PrimaryTerms};
use super::{in_time, prepare, sessions};

/// Time limit for making a connection, and again for preparing it. The timeout of takeovers counts if it is longer.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Configuration of a control connection.
pub(super) struct ControlConfig {
    pub(super) options: TakeoverOptions,
    pub(super) authority: Arc<dyn Authority>,
    pub(super) marks: Arc<MarkCache>,
    pub(super) primary_terms: Arc<PrimaryTerms>,
}

/// The server that the control connection leads to.
#[derive(Debug, Clone)]
pub struct Primary {
    /// Host and address.
    pub place: HostAddress,
    /// Host and address, in words for people.
    pub server: Arc<str>,
    /// Version of its PostgreSQL, as the server reports it.
    pub version: Arc<str>,
    /// Over when the server is no longer the primary.
    pub term: PrimaryTerm,
}

#[derive(Debug)]
pub(super) struct ControlConnection {
    pub(super) client: Client,
    pub(super) connection: AbortHandle,
    pub(super) backend: Backend,
    pub(super) cluster: Cluster,
    pub(super) primary: Primary,
    pub(super) has_witness: bool,
}

/// A connection that may serve: it has the rights and the lock, and leads to the cluster on record.
pub(super) struct Established {
    pub(super) session: Arc<ControlConnection>,
    pub(super) connection: JoinHandle<()>,
}

/// Connects to the primary: the newest server that takes writes and is not older than the one on record.
pub(super) async fn establish(
    config: &ControlConfig,
    previous: Option<Backend>,
) -> Result<Established, StartError> {
    let within = config.options.timeout.max(CONNECT_WITHIN);
    let found = hosts::primaries(&config.options.control, Instant::now() + within).await?;
    let mut refused = None;
    for open in of_one_cluster(config, found).await? {
        let at = open.at.to_string();
        let error = ControlError::Timeout;
        let prepared = timeout(within, prepare_session(config, open, previous)).await;
        match prepared.unwrap_or(Err(StartError::Connect { at, error })) {
            // A deposed primary that still runs beside another.
            Err(error @ StartError::WrongCluster { .. }) => refused = refused.or(Some(error)),
            prepared => return prepared,
        }
    }
    Err(refused.unwrap_or_else(|| StartError::NoPrimary {
        seen: "none of the hosts belongs to the cluster on record".to_owned(),
    }))
}

/// Leaves out the hosts of clusters other than the one on record.
async fn of_one_cluster(
    config: &ControlConfig,
    mut found: Vec<Open>,
) -> Result<Vec<Open>, StartError> {
    let system = |open: &Open| open.writes.map(|cluster| cluster.system_identifier);
    let first = found.first().and_then(system);
    if found.iter().all(|open| system(open) == first) {
        return Ok(found);
    }
    let deadline = Instant::now() + config.options.timeout;
    let Some(recorded) = in_time(config.authority.cluster(), deadline).await? else {
        return Err(StartError::NoPrimary {
            seen: "the hosts belong to several clusters".to_owned(),
        });
    };
    found.retain(|open| system(open) == Some(recorded.system_identifier));
    Ok(found)
}

/// If it fails, the client is dropped, which ends the session.
async fn prepare_session(
    config: &ControlConfig,
    open: Open,
    previous: Option<Backend>,
) -> Result<Established, StartError> {
    let Open { at, link, .. } = open;
    let prepared = prepare::prepare(config, &link.client, previous).await;
    if let (Err(StartError::OtherAuthority { .. }), Some(_)) = (&prepared, previous) {
        end_registered(config, &link.client).await?;
    }
    let (backend, cluster, has_witness) = prepared?;
    let version = link.version;
    let session = Arc::new(ControlConnection {
        client: link.client,
        connection: link.connection.abort_handle(),
        backend,
        cluster,
        primary: Primary {
            place: at.place,
            server: at.to_string().into(),
            version: Arc::clone(&version),
            term: config.primary_terms.begin(cluster),
        },
        has_witness,
    });
    tracing::info!(primary = %at, postgres = &*version, %cluster, "the control connection leads to the primary");
    Ok(Established {
        session,
        connection: link.connection,
    })
}

/// Another authority has taken over while this connection was down. Its takeovers know nothing of this proxy's
/// sessions, which must not continue beside its own.
async fn end_registered(config: &ControlConfig, client: &Client) -> Result<(), StartError> {
    let records = config.authority.sessions().await?;
    let registered: Vec<Backend> = records.into_iter().map(|(_, r)| r.backend).collect();
    sessions::terminate_over(client, &registered).await?;
    let sessions = registered.len();
    tracing::error!(
        sessions,
        "another authority serves this cluster; ending the sessions that hold our tokens"
    );
    Ok(())
}
