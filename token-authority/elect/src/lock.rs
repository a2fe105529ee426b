//! Locks that a leader holds.

use std::fmt;

use pgpalisade_authority::etcd;

use crate::candidate::{Candidate, LockError};
use crate::etcd::EtcdCandidate;
use crate::kubernetes::{Cluster, KubernetesCandidate, LeaseName};
use crate::proxied::ProxiedCandidate;
use crate::session::Proxied;

/// The value of `--with`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockSpec {
    Lease,
    Etcd(String),
    Kubernetes(LeaseName),
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
pub enum Lock {
    Lease,
    Etcd(etcd::Options, String),
    Kubernetes(Cluster, LeaseName),
    AdvisoryLock(i64),
}

impl Lock {
    /// Registers this process as a candidate, after a check that its command will write through pgpalisade. Bounded.
    pub(crate) async fn register(
        &self,
        proxied: &Proxied,
    ) -> Result<Box<dyn Candidate>, LockError> {
        // First: otherwise the mistake would appear only in a failover.
        if let Self::Etcd(..) | Self::Kubernetes(..) = self {
            proxied.check().await?;
        }
        Ok(match self {
            Self::Etcd(options, key) => {
                Box::new(EtcdCandidate::register(options, key, proxied.ttl).await?)
            }
            Self::Kubernetes(cluster, lease) => {
                Box::new(KubernetesCandidate::register(cluster, lease, proxied))
            }
            Self::Lease => Box::new(ProxiedCandidate::log_in(None, proxied).await?),
            Self::AdvisoryLock(id) => Box::new(ProxiedCandidate::log_in(Some(*id), proxied).await?),
        })
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
