//! A Lease that another program campaigns for, as its replica's proxy follows it.
//!
//! Nothing is written to the Lease. Its holder is relied upon for two thirds of its duration, as client-go relies on
//! itself, from the last renewal on; when exactly that was is not known, so it counts as having been as early as
//! possible.

use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pgpalisade_authority::{Election, Mandate, is_named};
use tokio::time::Instant;

use super::api::{Api, Cluster};
use super::resource::Resource;
use super::{LOOKS, LeaseName, PATIENCE, PAUSE};

/// Longest time between two reads; client-go renews every 2 s.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A Lease as one replica follows it: it leads while it is the holder.
#[derive(Debug)]
pub struct FollowedLease {
    api: Api,
    identity: String,
    seen: Mutex<Option<Seen>>,
}

/// A Lease as it was last read.
#[derive(Debug)]
struct Seen {
    lease: Option<Resource>,
    /// Start of the last read that showed another state. `None`: it is as it was at the first read, perhaps for long.
    changed_after: Option<Instant>,
    read_at: Instant,
}

impl FollowedLease {
    #[must_use]
    pub fn new(cluster: &Cluster, lease: &LeaseName, identity: &str) -> Self {
        Self {
            api: Api::new(cluster, lease, PATIENCE),
            identity: identity.to_owned(),
            seen: Mutex::default(),
        }
    }
}

#[async_trait]
impl Election for FollowedLease {
    fn look_every(&self) -> Duration {
        let seen = self.seen.lock();
        let lease = seen.as_ref().and_then(|seen| seen.lease.as_ref());
        let lives = lease.map(|lease| lease.lives() / LOOKS);
        lives.map_or(LOOK_EVERY, |often| often.clamp(PAUSE, LOOK_EVERY))
    }

    async fn read(&self) -> Result<Option<(Mandate, Instant)>, String> {
        let read_at = Instant::now();
        let lease = self.api.get().await.map_err(|error| error.to_string())?;
        let mut seen = self.seen.lock();
        Ok(Seen::next(&mut seen, lease, read_at).mandate(&self.identity))
    }
}

impl Seen {
    fn next(seen: &mut Option<Self>, lease: Option<Resource>, read_at: Instant) -> &Self {
        let changed_after = seen.as_ref().and_then(|before| {
            let is_same = match (&before.lease, &lease) {
                (None, None) => true,
                (Some(before), Some(lease)) => before.has_spec_of(lease),
                _ => false,
            };
            if is_same {
                before.changed_after
            } else {
                Some(before.read_at)
            }
        });
        seen.insert(Self {
            lease,
            changed_after,
            read_at,
        })
    }

    /// What the replica has, and until when the Lease is surely its own.
    fn mandate(&self, identity: &str) -> Option<(Mandate, Instant)> {
        let lease = self.lease.as_ref()?;
        let sure_until = self.changed_after? + lease.lives() * 2 / 3;
        let mandate = Mandate {
            id: lease.tenure(),
            number: None,
        };
        is_named(lease.holder(), identity).then_some((mandate, sure_until))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(holder: &str, renewed: &str, acquired: &str) -> Resource {
        let spec = json!({ "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed,
            "acquireTime": acquired, "leaseTransitions": 3 });
        Resource::read(json!({ "metadata": { "resourceVersion": "7" }, "spec": spec })).unwrap()
    }

    /// Reads a second apart, and for how long after the first the Lease is sure; `None`: it is not ours.
    #[test]
    fn a_lease_is_sure_from_the_read_before_its_renewal_was_seen() {
        let ours = |renewed: &str| Some(lease("a_1", renewed, "x"));
        for (reads, expect) in [
            // The holder may be long dead.
            (vec![ours("1"), ours("1"), ours("1")], None),
            (vec![ours("1"), ours("2")], Some(10)),
            (vec![ours("1"), ours("2"), ours("2")], Some(10)),
            (vec![ours("1"), ours("2"), ours("2"), ours("3")], Some(12)),
            (vec![None, ours("1")], Some(10)),
            (vec![ours("1"), None, ours("1")], Some(11)),
            (vec![Some(lease("b", "1", "x")), ours("1")], Some(10)),
            (vec![ours("1"), Some(lease("b", "2", "x"))], None),
            (vec![ours("1"), Some(lease("", "2", "x"))], None),
            (vec![ours("1"), ours("2"), None], None),
        ] {
            let (mut seen, first) = (None, Instant::now());
            let mut last = None;
            for (at, read) in reads.clone().into_iter().enumerate() {
                let read_at = first + Duration::from_secs(at as u64);
                last = Seen::next(&mut seen, read, read_at).mandate("a");
            }
            let until = last.map(|(_, until)| (until - first).as_secs());
            assert_eq!(until, expect, "{reads:?}");
        }
    }

    #[test]
    fn whoever_leads_again_has_another_mandate() {
        let id = |lease: Resource| {
            let (mut seen, now) = (None, Instant::now());
            Seen::next(&mut seen, None, now);
            let (mandate, _) = Seen::next(&mut seen, Some(lease), now)
                .mandate("a")
                .unwrap();
            mandate.id
        };
        let first = id(lease("a", "1", "x"));
        assert_eq!(first, id(lease("a", "2", "x")));
        assert_ne!(first, id(lease("a", "2", "y")));
        assert_ne!(first, id(lease("a_2", "1", "x")));
    }
}
