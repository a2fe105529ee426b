//! State of the etcd cluster, as `pgpalisade check` shows it.

use etcd_client::Client;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::connect::ATTEMPT_TIMEOUT;
use super::reported::{Endpoint, Member, MemberRole};
use super::store::EtcdStore;

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
        })
    }
}
