//! The configured hosts: the primary, and the state of the others.

use std::time::Duration;

use pgpalisade_authority::Cluster;
use pgpalisade_server::hosts::UpstreamAddr;
use pgpalisade_takeover::control::answer;
use pgpalisade_takeover::prepare::RoleRights;
use pgpalisade_takeover::{ControlError, prepare};
use serde::Serialize;
use tokio_postgres::Client;

use super::cluster::{self, ServerInfo};
use super::probe::{Probe, ProbeError};
use crate::config::Config;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HostRole {
    /// Takes writes, and no other host has a newer history.
    Primary,
    /// Takes writes, and is not the primary.
    Deposed,
    Standby,
    /// Of another cluster than the primary.
    Foreign,
    Unknown,
}

#[derive(Debug, Serialize)]
pub(crate) struct Host {
    pub(crate) host: String,
    pub(crate) role: HostRole,
    pub(crate) seen: String,
}

/// The host for further checks: the primary, or else the first that answers.
pub(super) struct Chosen {
    pub(super) connection: Probe,
    pub(super) rights: RoleRights,
    pub(super) server: ServerInfo,
    pub(super) upstream: UpstreamAddr,
    pub(super) control: UpstreamAddr,
    /// `None` for a standby, or if the server does not tell.
    cluster: Option<Cluster>,
    streams: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Unseen {
    #[error(transparent)]
    Connect(#[from] ProbeError),
    #[error("the query failed: {0}")]
    Question(#[from] ControlError),
}

pub(super) struct Survey {
    pub(super) chosen: Result<Chosen, Unseen>,
    pub(super) hosts: Vec<Host>,
}

pub(super) async fn survey(config: &Config, within: Duration) -> Survey {
    let control_hosts = config.control_hosts();
    let named = config.upstream.hosts.all().iter().zip(control_hosts.all());
    let mut all = Vec::new();
    for (upstream, control) in named {
        let seen = look(config, upstream, control, within).await;
        all.push((upstream.clone(), seen));
    }
    let newest = all
        .iter()
        .filter_map(|(_, seen)| seen.as_ref().ok()?.cluster);
    let newest = newest.max_by_key(|cluster| (cluster.timeline, cluster.postmaster_us));
    let host = |(upstream, seen): &(UpstreamAddr, Result<Chosen, Unseen>)| {
        let (role, seen) = match seen {
            Err(why) => (HostRole::Unknown, why.to_string()),
            Ok(chosen) => chosen.describe(newest),
        };
        let host = upstream.to_string();
        Host { host, role, seen }
    };
    let hosts = all.iter().map(host).collect();
    let is_primary = |seen: &Result<Chosen, Unseen>| {
        seen.as_ref()
            .is_ok_and(|chosen| chosen.cluster == newest && newest.is_some())
    };
    let at = all.iter().position(|(_, seen)| is_primary(seen));
    let at = at.or_else(|| all.iter().position(|(_, seen)| seen.is_ok()));
    // At least one host is named.
    let (_, chosen) = all.swap_remove(at.unwrap_or_default());
    Survey { chosen, hosts }
}

async fn look(
    config: &Config,
    upstream: &UpstreamAddr,
    control: &UpstreamAddr,
    within: Duration,
) -> Result<Chosen, Unseen> {
    let connection = Probe::open(control, config.control.expose(), within).await?;
    let rights = connection.look(prepare::rights).await?;
    let server = connection.look(cluster::server).await?;
    let (cluster, streams) = if rights.standby {
        (None, connection.look(streams).await?)
    } else {
        (connection.look(prepare::cluster).await.ok(), false)
    };
    Ok(Chosen {
        connection,
        rights,
        server,
        upstream: upstream.clone(),
        control: control.clone(),
        cluster,
        streams,
    })
}

async fn streams(client: &Client) -> Result<bool, ControlError> {
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_get_wal_receiver() r WHERE r.status = 'streaming')";
    let row = client.query_typed_one(sql, &[]).await?;
    answer(&row, 0)
}

impl Chosen {
    fn describe(&self, newest: Option<Cluster>) -> (HostRole, String) {
        let identifier = self.server.system_identifier;
        if newest.is_some_and(|primary| primary.system_identifier != identifier) {
            let seen = format!("belongs to another cluster, {identifier}");
            return (HostRole::Foreign, seen);
        }
        match self.cluster {
            Some(cluster) if Some(cluster) == newest => {
                let seen = format!("the primary, on timeline {}", cluster.timeline);
                (HostRole::Primary, seen)
            }
            Some(cluster) => {
                let timeline = cluster.timeline;
                let seen = format!("takes writes on timeline {timeline}, but is not the primary");
                (HostRole::Deposed, seen)
            }
            None if !self.rights.standby => {
                let seen = "does not tell its cluster".to_owned();
                (HostRole::Unknown, seen)
            }
            None if self.streams => (HostRole::Standby, "a standby, streaming".to_owned()),
            None => (HostRole::Standby, "a standby, not streaming".to_owned()),
        }
    }
}
