//! A Lease that another program campaigns for, as its replica's proxy follows it.
//!
//! Nothing is written to the Lease. Its holder is relied upon for two thirds of its duration, as client-go relies on
//! itself, from the last renewal on; when exactly that was is not known, so it counts as having been as early as
//! possible.

use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pgpalisade_authority::{Election, Mandate, Standing};
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

    async fn read(&self) -> Result<Standing, String> {
        let read_at = Instant::now();
        let lease = self.api.get().await.map_err(|error| error.to_string())?;
        let mut seen = self.seen.lock();
        Ok(Seen::next(&mut seen, lease, read_at).standing(&self.identity))
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

    fn standing(&self, identity: &str) -> Standing {
        let waits = |why: &str| Standing::Waits(why.to_owned());
        let Some(lease) = &self.lease else {
            return waits("there is no such Lease");
        };
        match (lease.holder(), self.changed_after) {
            ("", _) => waits("nobody holds the Lease"),
            (holder, _) if !is_named(holder, identity) => {
                Standing::Waits(format!("{holder:?} holds the Lease"))
            }
            _ if lease.lives().is_zero() => waits("the Lease has no leaseDurationSeconds"),
            (holder, None) => Standing::Waits(format!(
                "{holder:?} holds the Lease, and was not seen to renew it yet"
            )),
            (_, Some(changed_after)) => Standing::Leads {
                mandate: Mandate {
                    id: lease.tenure(),
                    number: None,
                },
                sure_until: changed_after + lease.lives() * 2 / 3,
            },
        }
    }
}

/// Whether the holder of a Lease is a replica: its identity, with or without `_` and the UUID that client-go's examples
/// and controller-runtime append. Not anything after `_`: `a_b` may be the name of another replica.
fn is_named(holder: &str, identity: &str) -> bool {
    let Some(rest) = holder.strip_prefix(identity) else {
        return false;
    };
    rest.is_empty() || rest.strip_prefix('_').is_some_and(is_uuid)
}

fn is_uuid(text: &str) -> bool {
    let fits = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(fits)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The replica `a`, and what client-go appends.
    const PROCESS: &str = "a_6f1c2f6e-8a0b-4b52-9d0a-0c6b4e4b7a11";

    fn lease(holder: &str, renewed: &str, acquired: &str) -> Resource {
        let spec = json!({ "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed,
            "acquireTime": acquired, "leaseTransitions": 3 });
        Resource::read(json!({ "metadata": { "resourceVersion": "7" }, "spec": spec })).unwrap()
    }

    fn stands(seen: &mut Option<Seen>, read: Option<Resource>, at: Instant) -> Standing {
        Seen::next(seen, read, at).standing("a")
    }

    #[test]
    fn a_holder_is_named_by_its_replica_and_its_process() {
        for (holder, expect) in [
            ("app-0", true),
            ("app-0_6f1c2f6e-8a0b-4b52-9d0a-0C6B4E4B7A11", true),
            ("app-0_6f1c2f6e-8a0b-4b52-9d0a-0c6b4e4b7a1", false),
            ("app-0_6f1c2f6e-8a0b-4b52-9d0a-0c6b4e4b7a1x", false),
            ("app-0_6f1c2f6e08a0b-4b52-9d0a-0c6b4e4b7a11", false),
            ("app-0_backup", false),
            ("app-0_", false),
            ("app-01", false),
            ("app", false),
            ("b_app-0", false),
            ("", false),
        ] {
            assert_eq!(is_named(holder, "app-0"), expect, "{holder}");
        }
    }

    /// Reads a second apart, and for how long after the first the Lease is sure; `None`: it is not.
    #[test]
    fn a_lease_is_sure_from_the_read_before_its_renewal_was_seen() {
        let ours = |renewed: &str| Some(lease(PROCESS, renewed, "x"));
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
                last = match stands(&mut seen, read, read_at) {
                    Standing::Leads { sure_until, .. } => Some((sure_until - first).as_secs()),
                    Standing::Waits(_) => None,
                };
            }
            assert_eq!(last, expect, "{reads:?}");
        }
    }

    #[test]
    fn whoever_leads_again_has_another_mandate() {
        let id = |lease: Resource| {
            let (mut seen, now) = (None, Instant::now());
            stands(&mut seen, None, now);
            match stands(&mut seen, Some(lease), now) {
                Standing::Leads { mandate, .. } => mandate.id,
                Standing::Waits(why) => panic!("{why}"),
            }
        };
        let first = id(lease("a", "1", "x"));
        assert_eq!(first, id(lease("a", "2", "x")));
        assert_ne!(first, id(lease("a", "2", "y")));
        assert_ne!(first, id(lease(PROCESS, "1", "x")));
    }

    #[test]
    fn whoever_does_not_lead_is_told_why() {
        let without_duration =
            json!({ "metadata": { "resourceVersion": "7" }, "spec": { "holderIdentity": "a" } });
        for (read, expect) in [
            (None, "there is no such Lease"),
            (Some(lease("", "1", "x")), "nobody holds the Lease"),
            (Some(lease("b_1", "1", "x")), "\"b_1\" holds the Lease"),
            (
                Resource::read(without_duration),
                "the Lease has no leaseDurationSeconds",
            ),
            (
                Some(lease("a", "1", "x")),
                "\"a\" holds the Lease, and was not seen to renew it yet",
            ),
        ] {
            let Standing::Waits(why) = stands(&mut None, read, Instant::now()) else {
                panic!("leads, not: {expect}");
            };
            assert_eq!(why, expect);
        }
    }
}
