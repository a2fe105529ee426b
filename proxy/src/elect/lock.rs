//! Locks that a leader holds, and what a candidate for one does.

use std::fmt;
use std::time::Duration;

use pgpalisade_authority::{LeaseTime, Scope, Token, etcd as authority_etcd};
use pgpalisade_tls::Login;

use super::etcd::{self, EtcdElection};
use super::kubernetes::{self, Cluster, KubernetesElection, KubernetesError, LeaseName};
use super::proxied::{self, Kind, ProxiedLock};
use super::zookeeper::{self, ElectionPath, Servers, ZooKeeperElection, ZooKeeperError};
use crate::config::Secret;

/// What is written after `--with`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LockSpec {
    /// `lease`.
    Lease,
    /// `etcd:KEY`.
    Etcd(String),
    /// `zookeeper:PATH`.
    ZooKeeper(ElectionPath),
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
            "zookeeper" => name.parse().map(Self::ZooKeeper),
            "kubernetes" => name.parse().map(Self::Kubernetes),
            "advisory-lock" => name.parse().map(Self::AdvisoryLock).map_err(|_| {
                "name the lock by a number, as pg_advisory_lock does: advisory-lock:42".to_owned()
            }),
            _ => Err(
                "write lease, etcd:KEY, zookeeper:PATH, kubernetes:NAMESPACE/NAME or advisory-lock:NUMBER".to_owned(),
            ),
        }
    }
}

impl fmt::Display for LockSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease => f.write_str("lease"),
            Self::Etcd(key) => write!(f, "etcd:{key}"),
            Self::ZooKeeper(path) => write!(f, "zookeeper:{path}"),
            Self::Kubernetes(lease) => write!(f, "kubernetes:{lease}"),
            Self::AdvisoryLock(id) => write!(f, "advisory-lock:{id}"),
        }
    }
}

/// A lock that one candidate holds at a time.
#[derive(Debug)]
pub(crate) enum Lock {
    Etcd(EtcdElection),
    ZooKeeper(ZooKeeperElection),
    Kubernetes(KubernetesElection),
    Proxied(ProxiedLock),
}

impl Lock {
    /// An election in etcd. Whoever does not renew its lease for this long has lost it.
    pub(crate) const fn etcd(options: authority_etcd::Options, key: String, ttl: Duration) -> Self {
        Self::Etcd(EtcdElection { options, key, ttl })
    }

    /// An election in ZooKeeper, whose sessions end where nothing is heard of them for this long.
    pub(crate) const fn zookeeper(servers: Servers, path: ElectionPath, ttl: Duration) -> Self {
        Self::ZooKeeper(ZooKeeperElection { servers, path, ttl })
    }

    /// A Lease of Kubernetes, which is free if it was not renewed for this long. Its holder takes its token through the
    /// proxy.
    pub(crate) const fn kubernetes(
        cluster: Cluster,
        lease: LeaseName,
        login: Secret<Login>,
        scope: Scope,
        ttl: Duration,
    ) -> Self {
        Self::Kubernetes(KubernetesElection {
            cluster,
            lease,
            ttl,
            login,
            scope,
        })
    }

    /// An advisory lock of the database behind the proxy, held by a session through it. A session that does not answer
    /// for this long is taken for lost.
    pub(crate) const fn advisory(
        login: Secret<Login>,
        id: i64,
        scope: Scope,
        ttl: Duration,
    ) -> Self {
        Self::Proxied(ProxiedLock {
            login,
            kind: Kind::AdvisoryLock(id),
            scope,
            ttl,
        })
    }

    /// The lease of the scope itself, held by a session through the proxy that renews it in this time.
    pub(crate) fn lease(login: Secret<Login>, scope: Scope, ttl: Duration) -> Self {
        let seconds = u16::try_from(ttl.as_secs()).unwrap_or(u16::MAX);
        Self::Proxied(ProxiedLock {
            login,
            kind: Kind::Lease(LeaseTime::Asked(seconds)),
            scope,
            ttl,
        })
    }
}

/// Why there is no lock, or no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// etcd does not answer, or refuses, or a file for it cannot be read.
    #[error(transparent)]
    Etcd(#[from] authority_etcd::OpenError),
    /// ZooKeeper does not answer, or refuses.
    #[error("ZooKeeper: {0}")]
    ZooKeeper(#[from] ZooKeeperError),
    /// Kubernetes does not answer, or refuses, or a file for it cannot be read.
    #[error("Kubernetes: {0}")]
    Kubernetes(#[from] KubernetesError),
    /// The session that holds the lock, or takes the token, cannot be had.
    #[error("the session through the proxy: {0}")]
    Session(String),
    /// Nobody has answered in time.
    #[error("no answer from {0} within {1:?}")]
    Silent(&'static str, Duration),
    /// The lease was lost while others led.
    #[error("the candidacy was lost: {0}")]
    Lost(String),
    /// Another holds it, and it is not to be waited for.
    #[error("another leads: {0}")]
    Held(String),
}

/// What a candidate does while another holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// It stands in the line.
    Waits,
    /// It gives up, and never was in the line.
    NoWait,
}

/// Somebody who waits for the lock, or holds it.
pub(super) enum Candidate {
    Etcd(Box<etcd::Candidate>),
    ZooKeeper(Box<zookeeper::Candidate>),
    Kubernetes(Box<kubernetes::Candidate>),
    Proxied(Box<proxied::Candidate>),
}

impl Candidate {
    /// Becomes one. Bounded.
    pub(super) async fn register(lock: &Lock) -> Result<Self, LockError> {
        Ok(match lock {
            Lock::Etcd(election) => {
                Self::Etcd(Box::new(etcd::Candidate::register(election).await?))
            }
            Lock::ZooKeeper(election) => {
                Self::ZooKeeper(Box::new(zookeeper::Candidate::register(election).await?))
            }
            Lock::Kubernetes(election) => {
                Self::Kubernetes(Box::new(kubernetes::Candidate::register(election)))
            }
            Lock::Proxied(lock) => Self::Proxied(Box::new(proxied::Candidate::log_in(lock).await?)),
        })
    }

    /// Waits, for as long as others lead and it is to, and gives the token of the term that begins.
    pub(super) async fn elected(&mut self, patience: Patience) -> Result<Token, LockError> {
        match self {
            Self::Etcd(candidate) => candidate.elected(patience).await,
            Self::ZooKeeper(candidate) => candidate.elected(patience).await,
            Self::Kubernetes(candidate) => candidate.elected(patience).await,
            Self::Proxied(candidate) => candidate.elected(patience).await,
        }
    }

    /// Waits until the lock is not sure to be held any more, and says why.
    pub(super) async fn lost(&mut self) -> String {
        match self {
            Self::Etcd(candidate) => candidate.lost().await,
            Self::ZooKeeper(candidate) => candidate.lost().await,
            Self::Kubernetes(candidate) => candidate.lost().await,
            Self::Proxied(candidate) => candidate.lost().await,
        }
    }

    /// Whether it still leads. No, where that is not found out before the lock may be another's.
    pub(super) async fn leads(&self) -> bool {
        match self {
            Self::Etcd(candidate) => candidate.leads().await,
            Self::ZooKeeper(candidate) => candidate.leads().await,
            Self::Kubernetes(candidate) => candidate.leads().await,
            Self::Proxied(candidate) => candidate.leads().await,
        }
    }

    /// Lets the next one lead at once, where the service can be told. Bounded.
    pub(super) async fn resign(self) {
        match self {
            Self::Etcd(candidate) => candidate.resign().await,
            Self::ZooKeeper(candidate) => candidate.resign().await,
            Self::Kubernetes(candidate) => candidate.resign().await,
            Self::Proxied(candidate) => candidate.resign().await,
        }
    }
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
        let path = "/jobs".parse().unwrap();
        assert_eq!(read("zookeeper:/jobs"), Ok(LockSpec::ZooKeeper(path)));
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
            "zookeeper",
            "zookeeper:jobs",
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
