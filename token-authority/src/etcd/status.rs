//! State of the etcd cluster, as `pgpalisade check` shows it.

use etcd_client::Client;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::connect::ATTEMPT_TIMEOUT;
use super::reported::{Endpoint, Member, MemberRole};
use super::store::EtcdStore;

/// Whether this version of etcd had stale reads: 3.4.20 and later in 3.4, and everything from 3.5.0. An unreadable
/// version counts as affected.
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
    pub(super) async fn endpoints(&self) -> Vec<Endpoint> {
        let asked = self
            .members
            .urls()
            .enumerate()
            .map(async |(index, url)| Endpoint {
                url: url.to_owned(),
                state: self.member(index).await,
            });
        join_all(asked).await
    }

    async fn member(&self, index: usize) -> Result<Member, String> {
        let until = Instant::now() + ATTEMPT_TIMEOUT;
        let ask = |client: Client| async move { client.maintenance_client().status().await };
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
