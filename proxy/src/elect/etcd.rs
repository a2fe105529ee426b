//! A candidate in an election of etcd.

use std::time::Duration;

use pgpalisade_authority::Token;
use pgpalisade_authority::etcd::{self, OpenError, Options, Standing};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::host_and_process;
use super::lease::{LATE, Lease};
use super::lock::{LockError, Patience};

/// How often a candidate looks where it stands.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// For the end of the lease.
const GOODBYE: Duration = Duration::from_secs(1);

/// What is said where somebody has removed a candidate.
const REMOVED: &str = "somebody has deleted its key in etcd";

/// Which election.
#[derive(Debug)]
pub(crate) struct EtcdElection {
    pub(super) options: Options,
    /// The prefix of the candidates' keys.
    pub(super) key: String,
    /// How long a lease lives without being renewed. Whole seconds.
    pub(super) ttl: Duration,
}

/// A candidate, whose lease is renewed while it waits and while it leads.
pub(super) struct Candidate {
    candidate: etcd::Candidate,
    lease: Lease,
}

impl Candidate {
    pub(super) async fn register(election: &EtcdElection) -> Result<Self, OpenError> {
        let EtcdElection { options, key, ttl } = election;
        let asked_at = Instant::now();
        Ok(Self {
            candidate: etcd::Candidate::register(options, key, *ttl).await?,
            lease: Lease {
                ttl: *ttl,
                asked_at,
            },
        })
    }

    pub(super) async fn elected(&mut self, patience: Patience) -> Result<Token, LockError> {
        let about = host_and_process();
        let token = match patience {
            Patience::Waits => self.candidate.join(&about).await?,
            Patience::NoWait => {
                let alone = self.candidate.join_alone(&about).await?;
                alone.ok_or_else(|| LockError::Held("there are candidates in etcd".to_owned()))?
            }
        };
        let turn = async {
            loop {
                // One that does not answer is heard of when the lease cannot be renewed.
                match self.candidate.standing().await {
                    Ok(Standing::Leads) => return Ok(()),
                    Ok(Standing::Gone) => return Err(LockError::Lost(REMOVED.to_owned())),
                    Ok(Standing::Waits) | Err(_) => sleep(LOOK_EVERY).await,
                }
            }
        };
        tokio::select! {
            turn = turn => turn?,
            why = self.lease.lost(async || self.candidate.renew().await) => return Err(LockError::Lost(why)),
        }
        match self.lease.is_sure() {
            true => Ok(token),
            // This process has slept since, and somebody else may lead.
            false => Err(LockError::Lost(LATE.to_owned())),
        }
    }

    pub(super) async fn lost(&mut self) -> String {
        let removed = async {
            loop {
                sleep(LOOK_EVERY).await;
                if let Ok(Standing::Gone | Standing::Waits) = self.candidate.standing().await {
                    return REMOVED.to_owned();
                }
            }
        };
        tokio::select! {
            why = removed => why,
            why = self.lease.lost(async || self.candidate.renew().await) => why,
        }
    }

    pub(super) async fn leads(&self) -> bool {
        let looked = timeout_at(self.lease.sure_until(), self.candidate.standing()).await;
        matches!(looked, Ok(Ok(Standing::Leads)))
    }

    pub(super) async fn resign(self) {
        // Where it is not heard, the lease ends by itself.
        let _expires = timeout(GOODBYE, self.candidate.resign()).await;
    }
}
