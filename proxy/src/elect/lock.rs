//! Locks that a leader holds, and their candidates.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use pgpalisade_authority::{Token, etcd};

use super::etcd::{EtcdCandidate, EtcdElection};
use super::kubernetes::{KubernetesCandidate, KubernetesElection, KubernetesError, LeaseName};
use super::proxied::{LockKind, ProxiedCandidate};
use super::session::Proxied;
use crate::server::hosts::UpstreamAddr;

/// The value of `--with`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LockSpec {
    /// `lease`.
    Lease,
    /// `etcd:KEY`.
    Etcd(String),
    /// `kubernetes:NAMESPACE/NAME`.
    Kubernetes(LeaseName),
    /// `advisory-lock:ID`.
    AdvisoryLock(i64),
}

impl std::str::FromStr for LockSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "lease" if text == kind => Ok(Self::Lease),
            "etcd" if name.is_empty() => {
                Err("name the election's key: etcd:/elections/jobs".to_owned())
            }
            "etcd" => Ok(Self::Etcd(name.to_owned())),
            "kubernetes" => name.parse().map(Self::Kubernetes),
            "advisory-lock" => name.parse().map(Self::AdvisoryLock).map_err(|_| {
                "name the lock by a number, as pg_advisory_lock does: advisory-lock:42".to_owned()
            }),
            _ => Err(
                "write lease, etcd:KEY, kubernetes:NAMESPACE/NAME or advisory-lock:NUMBER"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for LockSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease => f.write_str("lease"),
            Self::Etcd(key) => write!(f, "etcd:{key}"),
            Self::Kubernetes(lease) => write!(f, "kubernetes:{lease}"),
            Self::AdvisoryLock(id) => write!(f, "advisory-lock:{id}"),
        }
    }
}

/// A lock that one candidate holds at a time.
#[derive(Debug)]
pub(crate) enum Lock {
    Etcd(EtcdElection),
    Kubernetes(KubernetesElection),
    Proxied(LockKind),
}

impl Lock {
    /// Registers this process as a candidate, if its command will write through pgpalisade. Bounded.
    pub(super) async fn register(
        &self,
        proxied: &Proxied,
    ) -> Result<Box<dyn Candidate>, LockError> {
        // Before the registration: otherwise the mistake would appear only in a failover.
        if !matches!(self, Self::Proxied(_)) {
            proxied.check().await?;
        }
        Ok(match self {
            Self::Etcd(election) => Box::new(EtcdCandidate::register(election, proxied.ttl).await?),
            Self::Kubernetes(election) => {
                Box::new(KubernetesCandidate::register(election, proxied))
            }
            Self::Proxied(kind) => Box::new(ProxiedCandidate::log_in(*kind, proxied).await?),
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// etcd does not answer, or refuses, or a file for it cannot be read.
    #[error(transparent)]
    Etcd(#[from] etcd::EtcdOpenError),
    /// Kubernetes does not answer, or refuses, or a file for it cannot be read.
    #[error("Kubernetes: {0}")]
    Kubernetes(#[from] KubernetesError),
    /// The session that holds the lock, or takes the token, cannot be had.
    #[error("the session through the proxy: {0}")]
    Session(String),
    /// Writes that pass the proxy are not fenced.
    #[error(
        "the server at {0} is not pgpalisade, so it would not fence the command: give the proxy's address to --proxied"
    )]
    NotProxied(UpstreamAddr),
    #[error("no answer from the proxy at {0} within {1:?}")]
    Silent(UpstreamAddr, Duration),
    #[error("cannot connect to the proxy at {at}: {error}")]
    Connect {
        at: UpstreamAddr,
        error: pgpalisade_tls::ConnectError,
    },
    /// The lease was lost during the campaign.
    #[error("the candidacy was lost: {0}")]
    Lost(String),
    /// Another candidate holds the lock, and this one is not to wait.
    #[error("another leads: {0}")]
    Held(String),
}

/// Behaviour of a candidate while another holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    Waits,
    /// Gives up without queueing.
    NoWait,
}

/// A candidate for the lock, or its holder.
#[async_trait(?Send)]
pub(super) trait Candidate {
    /// Campaigns until this candidate leads, if it is to wait. Returns the token of the new term.
    async fn elected(&mut self, patience: Patience) -> Result<Token, LockError>;

    /// Waits until the lock may be lost, and says why.
    async fn lost(&mut self) -> String;

    /// Whether it still leads. `false` if the answer comes too late to be sure.
    async fn leads(&self) -> bool;

    /// Releases the lock at once, if the service can be reached. Bounded.
    async fn resign(self: Box<Self>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_read_strictly() {
        let read = |text: &str| text.parse::<LockSpec>();
        assert_eq!(read("etcd:/jobs"), Ok(LockSpec::Etcd("/jobs".to_owned())));
        assert_eq!(read("lease"), Ok(LockSpec::Lease));
        assert_eq!(read("etcd:a:b"), Ok(LockSpec::Etcd("a:b".to_owned())));
        let lease = "default/jobs".parse().unwrap();
        assert_eq!(
            read("kubernetes:default/jobs"),
            Ok(LockSpec::Kubernetes(lease))
        );
        assert_eq!(read("advisory-lock:42"), Ok(LockSpec::AdvisoryLock(42)));
        assert_eq!(read("advisory-lock:-1"), Ok(LockSpec::AdvisoryLock(-1)));
        for text in [
            "",
            "etcd",
            "etcd:",
            "zookeeper:/jobs",
            "kubernetes:jobs",
            "advisory-lock",
            "advisory-lock:x",
            "lease:",
            "lease:15s",
            "Etcd:/a",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }
}
