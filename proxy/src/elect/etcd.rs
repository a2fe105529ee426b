//! A candidate in an election of etcd, and how long it may count on its lease.

use std::time::Duration;

use pgpalisade_authority::Token;
use pgpalisade_authority::etcd::{self, OpenError, Options, Renewed, Standing};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::lock::LockError;

/// How often a candidate looks where it stands.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// For the end of the lease.
const GOODBYE: Duration = Duration::from_secs(1);
/// How many times a lease is renewed in its time. Half of the time is left then for what makes a renewal fail: etcd's
/// own election takes about 2 s.
const RENEWALS: u32 = 6;
/// Between two attempts to renew a lease.
const PAUSE: Duration = Duration::from_millis(200);

/// What is said where somebody has removed a candidate.
const REMOVED: &str = "somebody has deleted its key in etcd";
const LATE: &str = "the lease was not renewed in time";

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

/// How long a lease surely lives.
struct Lease {
    ttl: Duration,
    /// When the last answered renewal was asked for. It lives for its TTL from then on, or longer.
    asked_at: Instant,
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

    pub(super) async fn elected(&mut self) -> Result<Token, LockError> {
        let token = self.candidate.join(&host_and_process()).await?;
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
            why = self.lease.lost(&self.candidate) => return Err(LockError::Lost(why)),
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
            why = self.lease.lost(&self.candidate) => why,
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

impl Lease {
    /// A third of it before its end the lease is taken for lost, so that nobody else leads by then.
    fn sure_until(&self) -> Instant {
        self.asked_at + self.ttl * 2 / 3
    }

    fn is_sure(&self) -> bool {
        Instant::now() < self.sure_until()
    }

    /// Renews the lease until that cannot be done any more, and says why.
    async fn lost(&mut self, candidate: &etcd::Candidate) -> String {
        loop {
            sleep_until(self.asked_at + self.ttl / RENEWALS).await;
            let mut last = String::new();
            let renewed = timeout_at(self.sure_until(), async {
                loop {
                    let asked_at = Instant::now();
                    match candidate.renew().await {
                        Ok(Renewed::Yes) => return Some(asked_at),
                        Ok(Renewed::Ended) => return None,
                        Err(error) => last = format!(": {error}"),
                    }
                    sleep(PAUSE).await;
                }
            });
            match renewed.await {
                Ok(Some(asked_at)) => self.asked_at = asked_at,
                Ok(None) => return "etcd has ended the lease".to_owned(),
                Err(_) => return format!("{LATE}{last}"),
            }
        }
    }
}

/// Who leads, for people who look into etcd.
fn host_and_process() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{host} (pgpalisade elect, process {})", std::process::id())
}
