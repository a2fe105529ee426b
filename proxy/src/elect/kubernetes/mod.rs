//! A candidate for a Lease of Kubernetes, by the rules of client-go, so that it stands in one line with its candidates.
//!
//! A Lease is another's until it has not changed for as long as it says it lives, by the own clock. An update carries
//! the version that was read, so one of two candidates gets it. `leaseTransitions` is no token, as it starts again with
//! a deleted Lease: the leader takes the next number of its scope instead. Sources:
//! <https://github.com/kubernetes/client-go/blob/v0.31.0/tools/leaderelection/leaderelection.go>,
//! <https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/lease-v1/>.

mod api;
mod resource;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use pgpalisade_authority::{Claim, Leased, Token};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::lease::Lease;
use super::lock::{Candidate, LockError, Patience};
use super::session::{Proxied, Session, Unasked};
use api::Api;
use resource::{Resource, Seen};

pub(crate) use api::{Cluster, KubernetesError};

/// How often a candidate looks whether the Lease is free, at most: as client-go does.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How many looks a candidate has, at least, while a Lease lives.
const LOOKS: u32 = 6;
/// Between two attempts of one that must not fail for a passing reason.
const PAUSE: Duration = Duration::from_millis(100);
/// For giving the Lease back.
const GOODBYE: Duration = Duration::from_secs(2);

/// The name of a Lease: `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseName {
    namespace: String,
    name: String,
}

impl FromStr for LeaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) = text.split_once('/').unwrap_or_default();
        match is_label(namespace) && name.len() <= 253 && name.split('.').all(is_label) {
            true => Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            false => Err("name the Lease and its namespace: kubernetes:default/jobs".to_owned()),
        }
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// <https://kubernetes.io/docs/concepts/overview/working-with-objects/names/>
fn is_label(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let in_bounds = (1..=63).contains(&text.len());
    in_bounds && text.chars().all(inside) && !text.starts_with('-') && !text.ends_with('-')
}

/// Which election.
#[derive(Debug)]
pub(crate) struct KubernetesElection {
    pub(crate) cluster: Cluster,
    pub(crate) lease: LeaseName,
}

/// A candidate, which renews the Lease while it leads.
pub(super) struct KubernetesCandidate {
    holder: Holder,
    /// Where the leader takes its number.
    proxied: Proxied,
    lease: Lease,
    /// What the others' Lease said when it was read last.
    seen: Option<Seen>,
}

/// Who holds the Lease, or wants to.
struct Holder {
    api: Api,
    /// Nobody else has it: two with one identity would lead together.
    identity: String,
    ttl: Duration,
}

impl KubernetesCandidate {
    pub(super) fn register(election: &KubernetesElection, proxied: &Proxied) -> Self {
        let ttl = proxied.ttl;
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        Self {
            holder: Holder {
                api: Api::new(&election.cluster, &election.lease, ttl / 3),
                identity: format!("{host}_{:032x}", rand::random::<u128>()),
                ttl,
            },
            proxied: proxied.clone(),
            lease: Lease {
                ttl,
                asked_at: Instant::now(),
            },
            seen: None,
        }
    }

    /// Waits until the Lease is its own. Gives when that was asked for.
    async fn turn(&mut self, patience: Patience) -> Result<Instant, LockError> {
        let mut answered = Instant::now();
        loop {
            match self.attempt().await {
                Ok(Some(asked_at)) => return Ok(asked_at),
                Ok(None) => {
                    answered = Instant::now();
                    self.check_patience(patience)?;
                }
                Err(error) if patience == Patience::NoWait || error.is_refusal() => {
                    return Err(error.into());
                }
                Err(error) if answered.elapsed() > self.holder.ttl => return Err(error.into()),
                Err(_) => {}
            }
            sleep(LOOK_EVERY.min(self.holder.ttl / LOOKS)).await;
        }
    }

    /// Gives up, where it is not to wait and another leads. A Lease that was renewed long ago, or in the future, may
    /// have been left behind, or clocks differ: whether it changes has to be seen.
    fn check_patience(&self, patience: Patience) -> Result<(), LockError> {
        match &self.seen {
            Some(seen) if patience == Patience::NoWait && seen.is_kept() => Err(LockError::Held(
                format!("{} holds the Lease", seen.holder()),
            )),
            _ => Ok(()),
        }
    }

    /// Takes the Lease if it is free. Gives when that was asked for; nothing where it is another's.
    async fn attempt(&mut self) -> Result<Option<Instant>, KubernetesError> {
        let Holder { api, identity, ttl } = &self.holder;
        let asked_at = Instant::now();
        let written = match api.get().await? {
            None => api.create(identity, *ttl).await?,
            Some(lease) => {
                // It may be its own, where the answer was lost.
                if !lease.is_held_by(identity)
                    && !Seen::is_free(&mut self.seen, &lease, Instant::now())
                {
                    return Ok(None);
                }
                api.update(lease.held(identity, *ttl)).await?
            }
        };
        Ok(written.then_some(asked_at))
    }
}

#[async_trait(?Send)]
impl Candidate for KubernetesCandidate {
    async fn elected(&mut self, patience: Patience) -> Result<Token, LockError> {
        self.lease.asked_at = self.turn(patience).await?;
        let Self {
            holder,
            proxied,
            lease,
            ..
        } = self;
        let token = take(holder, proxied);
        lease.kept_for(token, async || holder.renew().await).await
    }

    async fn lost(&mut self) -> String {
        let Self { holder, lease, .. } = self;
        lease.lost(async || holder.renew().await).await
    }

    async fn leads(&self) -> bool {
        // What was under way may have come in between.
        let renewed = self.holder.persistently(async || self.holder.renew().await);
        let renewed = timeout_at(self.lease.sure_until(), renewed).await;
        matches!(renewed, Ok(Leased::Held))
    }

    async fn resign(self: Box<Self>) {
        // Where it is not heard, the Lease ends by itself.
        let released = self
            .holder
            .persistently(async || self.holder.release().await);
        let _expires = timeout(GOODBYE, released).await;
    }
}

impl Holder {
    /// Writes the Lease again, if it is still there and its own. Whoever has deleted it has ended the term: another one
    /// may have made a new one and led since.
    async fn renew(&self) -> Result<Leased, KubernetesError> {
        let Some(lease) = self.own().await? else {
            return Ok(Leased::NotHeld);
        };
        match self
            .api
            .update(lease.held(&self.identity, self.ttl))
            .await?
        {
            true => Ok(Leased::Held),
            false => Err(KubernetesError::Conflict),
        }
    }

    async fn release(&self) -> Result<(), KubernetesError> {
        let Some(lease) = self.own().await? else {
            return Ok(());
        };
        match self.api.update(lease.released()).await? {
            true => Ok(()),
            false => Err(KubernetesError::Conflict),
        }
    }

    /// Repeats a request until it is answered. Not bounded.
    async fn persistently<T>(&self, ask: impl AsyncFn() -> Result<T, KubernetesError>) -> T {
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// The Lease, if it is its own.
    async fn own(&self) -> Result<Option<Resource>, KubernetesError> {
        let lease = self.api.get().await?;
        Ok(lease.filter(|lease| lease.is_held_by(&self.identity)))
    }
}

/// Takes the next number. Behind the mark that was read comes a look whether the Lease is still its own: so who slept
/// between two steps is refused.
async fn take(holder: &Holder, proxied: &Proxied) -> Result<Token, LockError> {
    let session = Session::log_in(proxied).await?;
    loop {
        let mark = session.mark().await?;
        if holder.own().await?.is_none() {
            return Err(LockError::Lost(
                "another process holds the Lease".to_owned(),
            ));
        }
        match session.claim(Claim::After(mark)).await {
            Ok(()) => break,
            // Somebody has declared in between.
            Err(Unasked::Stale(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let token = session.token().await?;
    session.end().await;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_strictly() {
        let read = |text: &str| text.parse::<LeaseName>().map(|name| name.to_string());
        for text in ["default/jobs", "a-1/b.c-2.d"] {
            assert_eq!(read(text).as_deref(), Ok(text));
        }
        for text in [
            "", "jobs", "/jobs", "a/", "a/b/c", "A/b", "a.b/c", "a/b..c", "a/-b", "a/b?x=",
            "a/b%2f",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
        assert!(read(&format!("{}/b", "a".repeat(64))).is_err());
        assert!(read(&format!("a/{}", ["b"; 128].join("."))).is_err());
    }
}
