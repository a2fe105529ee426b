//! A candidate in an election of etcd.

use std::time::Duration;

use async_trait::async_trait;
use pgpalisade_authority::etcd::{CandidateStatus, ElectionCandidate, Options};
use pgpalisade_authority::{OpenError, Token};
use tokio::time::{sleep, timeout, timeout_at};

use crate::candidate::{Candidate, LockError};
use crate::host_and_process;
use crate::lease::Lease;

/// Interval between a candidate's looks at its position.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// For the end of the lease.
const GOODBYE: Duration = Duration::from_secs(1);

/// Reported if a candidate's key was removed.
const REMOVED: &str = "its key in etcd was deleted";

pub(crate) struct EtcdCandidate {
    candidate: ElectionCandidate,
    lease: Lease,
}

impl EtcdCandidate {
    pub(crate) async fn register(
        options: &Options,
        key: &str,
        ttl: Duration,
    ) -> Result<Self, OpenError> {
        let lease = Lease::new(ttl);
        let candidate = ElectionCandidate::register(options, key, ttl).await?;
        Ok(Self { candidate, lease })
    }
}

#[async_trait(?Send)]
impl Candidate for EtcdCandidate {
    async fn elected(&mut self, waits: bool) -> Result<Token, LockError> {
        let about = host_and_process();
        let Self { candidate, lease } = self;
        let token = if waits {
            candidate.join(&about).await?
        } else {
            let alone = candidate.join_alone(&about).await?;
            alone.ok_or_else(|| LockError::Held("there are candidates in etcd".to_owned()))?
        };
        let turn = async {
            loop {
                // Without an answer, the renewal of the lease fails too, and reports it.
                match candidate.status().await {
                    Ok(CandidateStatus::Leads) => return Ok(token),
                    Ok(CandidateStatus::Gone) => return Err(LockError::Lost(REMOVED.to_owned())),
                    Ok(CandidateStatus::Waits) | Err(_) => sleep(LOOK_EVERY).await,
                }
            }
        };
        lease.kept_for(turn, async || candidate.renew().await).await
    }

    async fn lost(&self) -> String {
        let removed = async {
            loop {
                sleep(LOOK_EVERY).await;
                if let Ok(CandidateStatus::Gone | CandidateStatus::Waits) =
                    self.candidate.status().await
                {
                    return REMOVED.to_owned();
                }
            }
        };
        tokio::select! {
            why = removed => why,
            why = self.lease.lost(async || self.candidate.renew().await) => why,
        }
    }

    async fn leads(&self) -> bool {
        let looked = timeout_at(self.lease.sure_until(), self.candidate.status()).await;
        matches!(looked, Ok(Ok(CandidateStatus::Leads)))
    }

    async fn resign(self: Box<Self>) {
        let _expires = timeout(GOODBYE, self.candidate.resign()).await;
    }
}
