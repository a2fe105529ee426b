//! State of the etcd cluster, as `pgpalisade check` shows it.

use std::fmt;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::members::ATTEMPT_TIMEOUT;
use super::store::EtcdStore;

/// Current state of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// URL, without user and password.
    pub url: String,
    /// Report of the member, or why it did not answer within a second.
    pub state: Result<Member, String>,
}

/// Report of a member of the etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Version, for example `3.4.23`.
    pub version: String,
    /// Cluster of the member. All endpoints should name the same one.
    pub cluster_id: u64,
    /// Whether the member leads, follows a leader, or knows none.
    pub role: MemberRole,
    /// Bytes of the data file.
    pub db_size: i64,
    /// Alarms and other errors. Empty if the member is healthy.
    pub errors: Vec<String>,
    /// Whether this version may answer a linearizable read with an old value after a pause
    /// (<https://github.com/etcd-io/etcd/issues/20418>). This store decides nothing by a read, so it is safe there
    /// too; other programs may not be.
    pub stale_reads: bool,
}

/// Role of a member in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberRole {
    /// The member leads.
    Leader,
    /// The member follows a leader.
    Follower,
    /// The member copies the data and has no vote yet.
    Learner,
    /// The member knows no leader: it is cut off, or no majority is left. It cannot store anything.
    NoLeader,
}

impl fmt::Display for MemberRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Learner => "learner",
            Self::NoLeader => "without a leader",
        })
    }
}

/// Whether this version of etcd had stale reads: 3.4.20 and later in 3.4, and everything from 3.5.0. Later releases
/// may have a fix that is not known here. An unreadable version counts as affected.
fn has_stale_reads(version: &str) -> bool {
    let mut parts = version.split(['.', '-', '+']).map(str::parse::<u32>);
    let mut part = || parts.next().and_then(Result::ok);
    match (part(), part(), part()) {
        (Some(major), Some(minor), Some(patch)) => {
            (major, minor) >= (3, 5) || (major, minor, patch) >= (3, 4, 20)
        }
        _ => true,
    }
}

impl EtcdStore {
    /// Asks every endpoint in parallel. Takes about a second at most.
    pub(super) async fn endpoints(self: &Arc<Self>) -> Vec<Endpoint> {
        let mut asked = JoinSet::new();
        for (index, url) in self.members.urls().enumerate() {
            let (store, url) = (Arc::clone(self), url.to_owned());
            asked.spawn(async move {
                let state = store.member(index).await;
                (index, Endpoint { url, state })
            });
        }
        let mut endpoints = asked.join_all().await;
        endpoints.sort_unstable_by_key(|(index, _)| *index);
        endpoints
            .into_iter()
            .map(|(_, endpoint)| endpoint)
            .collect()
    }

    async fn member(&self, index: usize) -> Result<Member, String> {
        let until = Instant::now() + ATTEMPT_TIMEOUT;
        let ask =
            |client: etcd_client::Client| async move { client.maintenance_client().status().await };
        let status = self.members.attempt(index, until, &ask).await;
        let status = status.map_err(|fault| fault.text)?;
        let header = status.header().ok_or("an answer without a header")?;
        let role = match (status.leader(), header.member_id()) {
            (0, _) => MemberRole::NoLeader,
            (leader, own) if leader == own => MemberRole::Leader,
            _ if status.is_learner() => MemberRole::Learner,
            _ => MemberRole::Follower,
        };
        Ok(Member {
            version: status.version().to_owned(),
            cluster_id: header.cluster_id(),
            role,
            db_size: status.db_size(),
            errors: status.errors().to_vec(),
            stale_reads: has_stale_reads(status.version()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::has_stale_reads;

    #[test]
    fn versions_with_stale_reads() {
        for (version, expect) in [
            ("3.3.27", false),
            ("3.4.0", false),
            ("3.4.19", false),
            ("3.4.20", true),
            ("3.4.23", true),
            ("3.5.0", true),
            ("3.5.0-rc.1", true),
            ("3.6.4", true),
            ("4.0.0", true),
            ("", true),
        ] {
            assert_eq!(has_stale_reads(version), expect, "{version}");
        }
    }
}
