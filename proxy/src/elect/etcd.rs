//! An election in etcd, the one of `etcdctl elect` and of Go's `concurrency` package: candidates may be of any kind.
//!
//! The token is the revision at which the candidate's key was made. etcd counts revisions up for the whole cluster, and
//! the candidate with the lowest one leads: so it rises with every term.
//! <https://etcd.io/docs/v3.5/dev-guide/api_concurrency_reference_v3/>

use std::time::Duration;

use etcd_client::Client;
use pgpalisade_authority::Token;
use pgpalisade_authority::etcd::Options;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::lock::LockError;

/// For each answer of etcd but that to a candidacy.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// For the end of the lease, which nobody has to wait for.
const RESIGNS_WITHIN: Duration = Duration::from_secs(1);
/// Between two attempts to renew a lease.
const PAUSE: Duration = Duration::from_millis(200);

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
    key: String,
    lease: Lease,
}

/// A lease, and how long it surely lives.
struct Lease {
    client: Client,
    id: i64,
    ttl: Duration,
    /// When the last answered renewal was asked for. The lease lives for its TTL from then on, or longer.
    asked_at: Instant,
}

impl Candidate {
    /// Gets a lease. The line is joined later.
    pub(super) async fn register(election: &EtcdElection) -> Result<Self, LockError> {
        let mut client = election.options.client().await?;
        let seconds = i64::try_from(election.ttl.as_secs()).unwrap_or(i64::MAX);
        let asked_at = Instant::now();
        let granted = timeout(ANSWER_WITHIN, client.lease_grant(seconds, None)).await;
        let granted = granted.map_err(|_| LockError::Silent("etcd", ANSWER_WITHIN))??;
        Ok(Self {
            lease: Lease {
                client,
                id: granted.id(),
                ttl: election.ttl,
                asked_at,
            },
            key: election.key.clone(),
        })
    }

    pub(super) async fn elected(&mut self) -> Result<Token, LockError> {
        let mut election = self.lease.client.election_client();
        let campaign = election.campaign(self.key.as_str(), host_and_process(), self.lease.id);
        let elected = tokio::select! {
            elected = campaign => elected?,
            why = self.lease.lost() => return Err(LockError::Lost(why)),
        };
        if Instant::now() >= self.lease.sure_until() {
            // This process has slept since, and somebody else may lead.
            let why = "the lease was not renewed in time".to_owned();
            return Err(LockError::Lost(why));
        }
        let revision = elected.leader().map(|leader| leader.rev());
        let token = revision.and_then(|revision| Token::new(u64::try_from(revision).ok()?).ok());
        token.ok_or_else(|| LockError::Lost("etcd has named no key".to_owned()))
    }

    pub(super) async fn lost(&mut self) -> String {
        self.lease.lost().await
    }

    /// The candidate's key goes with its lease.
    pub(super) async fn resign(mut self) {
        let revoked = self.lease.client.lease_revoke(self.lease.id);
        let _expires_anyway = timeout(RESIGNS_WITHIN, revoked).await;
    }
}

impl Lease {
    /// A third of it before its end the lease is taken for lost, so that nobody else leads by then.
    fn sure_until(&self) -> Instant {
        self.asked_at + self.ttl * 2 / 3
    }

    /// Renews the lease until that cannot be done any more, and says why. Where this is dropped nothing is lost.
    async fn lost(&mut self) -> String {
        loop {
            sleep_until(self.asked_at + self.ttl / 3).await;
            let mut last = "no answer from etcd".to_owned();
            let renewed = timeout_at(self.sure_until(), async {
                loop {
                    let asked_at = Instant::now();
                    match self.client.lease_keep_alive(self.id).await {
                        // The answer to the first request on it says that the lease lives.
                        Ok(_stream) => return Ok(asked_at),
                        Err(etcd_client::Error::LeaseKeepAliveError(_)) => return Err(()),
                        Err(error) => last = error.to_string(),
                    }
                    sleep(PAUSE).await;
                }
            });
            match renewed.await {
                Ok(Ok(asked_at)) => self.asked_at = asked_at,
                Ok(Err(())) => return "etcd has ended the lease".to_owned(),
                Err(_) => return format!("the lease was not renewed in time: {last}"),
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
