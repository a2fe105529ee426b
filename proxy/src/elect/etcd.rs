//! A candidate in an election of etcd.

use std::time::Duration;

use async_trait::async_trait;
use pgpalisade_authority::Token;
use pgpalisade_authority::etcd::{self, CandidateStatus, EtcdOpenError, Options};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::host_and_process;
use super::lease::Lease;
use super::lock::{Candidate, LockError, Patience};

/// Interval between a candidate's looks at its position.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// For the end of the lease.
const GOODBYE: Duration = Duration::from_secs(1);

/// Reported if a candidate's key was removed.
const REMOVED: &str = "its key in etcd was deleted";

#[derive(Debug)]
pub(crate) struct EtcdElection {
    pub(crate) options: Options,
    /// The prefix of the candidates' keys.
    pub(crate) key: String,
}

/// A candidate whose lease is renewed both before and during its term.
pub(super) struct EtcdCandidate {
    candidate: etcd::ElectionCandidate,
    lease: Lease,
}

impl EtcdCandidate {
    pub(super) async fn register(
        election: &EtcdElection,
        ttl: Duration,
    ) -> Result<Self, EtcdOpenError> {
        let EtcdElection { options, key } = election;
        let asked_at = Instant::now();
        Ok(Self {
            candidate: etcd::ElectionCandidate::register(options, key, ttl).await?,
            lease: Lease { ttl, asked_at },
        })
    }
}

#[async_trait(?Send)]
impl Candidate for EtcdCandidate {
    async fn elected(&mut self, patience: Patience) -> Result<Token, LockError> {
        let about = host_and_process();
        let Self { candidate, lease } = self;
        let token = match patience {
            Patience::Waits => candidate.join(&about).await?,
            Patience::NoWait => {
                let alone = candidate.join_alone(&about).await?;
                alone.ok_or_else(|| LockError::Held("there are candidates in etcd".to_owned()))?
            }
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

    async fn lost(&mut self) -> String {
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
        // If the request is lost, the lease expires.
        let _expires = timeout(GOODBYE, self.candidate.resign()).await;
    }
}
