//! A candidate for a Lease of Kubernetes, by the rules of client-go, so both kinds of candidates can compete for one
//! Lease.
//!
//! A Lease is free once it has not changed for its own duration, measured by the local clock. An update carries the
//! version that was read, so only one of two candidates succeeds. `leaseTransitions` is no token, as it restarts with
//! a deleted Lease: the leader takes the next number of its scope. Sources:
//! <https://github.com/kubernetes/client-go/blob/v0.31.0/tools/leaderelection/leaderelection.go>,
//! <https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/lease-v1/>.

mod api;
mod follow;
mod resource;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use pgpalisade_authority::{Claim, Leased, Token};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::candidate::{Candidate, LockError};
use crate::lease::Lease;
use crate::session::{Proxied, ProxySession};
use api::{Api, KubernetesError};
use resource::{ObservedLease, Resource};

pub use api::Cluster;
pub use follow::FollowedLease;

/// Longest interval between a candidate's looks at the Lease, as in client-go.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Least number of looks in the duration of a Lease.
const LOOKS: u32 = 6;
/// Pause before a retry of a request that is repeated until it succeeds.
const PAUSE: Duration = Duration::from_millis(100);
const GOODBYE: Duration = Duration::from_secs(2);
/// For one answer about a Lease that is only followed.
const PATIENCE: Duration = Duration::from_secs(3);

impl From<KubernetesError> for LockError {
    fn from(error: KubernetesError) -> Self {
        Self::Failed(format!("Kubernetes: {error}"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseName {
    namespace: String,
    name: String,
}

impl FromStr for LeaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) = text.split_once('/').unwrap_or_default();
        if is_label(namespace) && name.len() <= 253 && name.split('.').all(is_label) {
            Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })
        } else {
            Err("name the Lease and its namespace: kubernetes:default/jobs".to_owned())
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

pub(crate) struct KubernetesCandidate {
    holder: LeaseHolder,
    proxied: Proxied,
    lease: Lease,
    /// Another candidate's Lease, as last read.
    seen: Option<ObservedLease>,
}

/// A holder of the Lease, or a candidate.
struct LeaseHolder {
    api: Api,
    /// Unique: two processes with one identity would lead together.
    identity: String,
    ttl: Duration,
}

impl KubernetesCandidate {
    pub(crate) fn register(cluster: &Cluster, lease: &LeaseName, proxied: &Proxied) -> Self {
        let ttl = proxied.ttl;
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        Self {
            holder: LeaseHolder {
                api: Api::new(cluster, lease, ttl / 3),
                identity: format!("{host}_{:032x}", rand::random::<u128>()),
                ttl,
            },
            proxied: proxied.clone(),
            lease: Lease::new(ttl),
            seen: None,
        }
    }

    /// Waits until this candidate holds the Lease. Returns the time of the request.
    async fn turn(&mut self, waits: bool) -> Result<Instant, LockError> {
        let mut answered = Instant::now();
        loop {
            match self.attempt().await {
                Ok(Some(asked_at)) => return Ok(asked_at),
                Ok(None) => {
                    answered = Instant::now();
                    self.check_patience(waits)?;
                }
                Err(error) if !waits || error.is_refusal() => {
                    return Err(error.into());
                }
                Err(error) if answered.elapsed() > self.holder.ttl => return Err(error.into()),
                Err(_) => {}
            }
            sleep(LOOK_EVERY.min(self.holder.ttl / LOOKS)).await;
        }
    }

    /// Gives up if another leads and the candidate does not wait. A Lease that was renewed long ago, or in the
    /// future, may be abandoned, or clocks differ: only a change proves a living holder.
    fn check_patience(&self, waits: bool) -> Result<(), LockError> {
        match &self.seen {
            Some(seen) if !waits && seen.is_kept() => Err(LockError::Held(format!(
                "{} holds the Lease",
                seen.holder()
            ))),
            _ => Ok(()),
        }
    }

    async fn attempt(&mut self) -> Result<Option<Instant>, KubernetesError> {
        let LeaseHolder { api, identity, ttl } = &self.holder;
        let asked_at = Instant::now();
        let written = match api.get().await? {
            None => api.create(identity, *ttl).await?,
            Some(lease) => {
                // This candidate may hold it already, if the answer was lost.
                if !lease.is_held_by(identity)
                    && !ObservedLease::is_free(&mut self.seen, &lease, Instant::now())
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
    async fn elected(&mut self, waits: bool) -> Result<Token, LockError> {
        let asked_at = self.turn(waits).await?;
        self.lease.renewed_at(asked_at);
        let token = take(&self.holder, &self.proxied);
        let renew = async || self.holder.renew().await;
        self.lease.kept_for(token, renew).await
    }

    async fn lost(&self) -> String {
        let renew = async || self.holder.renew().await;
        self.lease.lost(renew).await
    }

    async fn leads(&self) -> bool {
        // A pending request may conflict with this one.
        let renewed = self.holder.persistently(async || self.holder.renew().await);
        let renewed = timeout_at(self.lease.sure_until(), renewed).await;
        matches!(renewed, Ok(Leased::Held))
    }

    async fn resign(self: Box<Self>) {
        let released = self
            .holder
            .persistently(async || self.holder.release().await);
        let _expires = timeout(GOODBYE, released).await;
    }
}

impl LeaseHolder {
    /// Renews the Lease, if this process holds it. Deleting a Lease ends the term, since another candidate may have
    /// created a new one and led in between.
    async fn renew(&self) -> Result<Leased, KubernetesError> {
        let Some(lease) = self.own().await? else {
            return Ok(Leased::NotHeld);
        };
        if self
            .api
            .update(lease.held(&self.identity, self.ttl))
            .await?
        {
            Ok(Leased::Held)
        } else {
            Err(KubernetesError::Conflict)
        }
    }

    async fn release(&self) -> Result<(), KubernetesError> {
        let Some(lease) = self.own().await? else {
            return Ok(());
        };
        if self.api.update(lease.released()).await? {
            Ok(())
        } else {
            Err(KubernetesError::Conflict)
        }
    }

    /// Repeats a request until it succeeds. Not bounded.
    async fn persistently<T>(&self, ask: impl AsyncFn() -> Result<T, KubernetesError>) -> T {
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    async fn own(&self) -> Result<Option<Resource>, KubernetesError> {
        let lease = self.api.get().await?;
        Ok(lease.filter(|lease| lease.is_held_by(&self.identity)))
    }
}

/// Takes the next token. Checks the Lease after reading the mark, so a process that slept between two steps is
/// refused.
async fn take(holder: &LeaseHolder, proxied: &Proxied) -> Result<Token, LockError> {
    let session = ProxySession::log_in(proxied).await?;
    loop {
        let mark = session.mark().await?;
        if holder.own().await?.is_none() {
            return Err(LockError::Lost(
                "another process holds the Lease".to_owned(),
            ));
        }
        match session.claim(Claim::After(mark)).await {
            Ok(()) => break,
            // Another session has declared in between.
            Err(unasked) if unasked.is_stale() => {}
            Err(unasked) => return Err(unasked.into()),
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
