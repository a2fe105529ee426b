//! The fields of a Lease that candidates read and write.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

/// Format of a Lease's times (`MicroTime`).
const MICRO_TIME: &str = "%Y-%m-%dT%H:%M:%S.%6fZ";

/// A whole Lease: fields of others are kept.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Resource {
    spec: Map<String, Value>,
    /// Version, labels and the like.
    rest: Map<String, Value>,
}

impl Resource {
    /// A new Lease that a candidate holds.
    pub(super) fn new(name: &str, identity: &str, ttl: Duration) -> Self {
        let mut rest = Map::new();
        rest.insert("apiVersion".to_owned(), "coordination.k8s.io/v1".into());
        rest.insert("kind".to_owned(), "Lease".into());
        rest.insert("metadata".to_owned(), json!({ "name": name }));
        let mut spec = Map::new();
        spec.insert("leaseTransitions".to_owned(), 0.into());
        Self { spec, rest }.acquired(identity).renewed(ttl)
    }

    /// Parses a Lease of the API. `None` without a version, because an update would then overwrite any state.
    pub(super) fn read(lease: Value) -> Option<Self> {
        let Value::Object(mut rest) = lease else {
            return None;
        };
        if !rest.get("metadata")?.get("resourceVersion")?.is_string() {
            return None;
        }
        let spec = match rest.remove("spec") {
            Some(Value::Object(spec)) => spec,
            _ => Map::new(),
        };
        Some(Self { spec, rest })
    }

    pub(super) fn into_value(self) -> Value {
        let Self { spec, mut rest } = self;
        rest.insert("spec".to_owned(), spec.into());
        rest.into()
    }

    pub(super) fn is_held_by(&self, identity: &str) -> bool {
        self.holder() == identity
    }

    /// The Lease, renewed, or taken over from another holder.
    pub(super) fn held(mut self, identity: &str, ttl: Duration) -> Self {
        if !self.is_held_by(identity) {
            let transitions = self.number("leaseTransitions").saturating_add(1);
            self.set("leaseTransitions", transitions);
            self = self.acquired(identity);
        }
        self.renewed(ttl)
    }

    pub(super) fn released(self) -> Self {
        self.acquired("").renewed(Duration::from_secs(1))
    }

    fn acquired(mut self, identity: &str) -> Self {
        self.set("holderIdentity", identity);
        self.set("acquireTime", now());
        self
    }

    fn renewed(mut self, ttl: Duration) -> Self {
        self.set("leaseDurationSeconds", ttl.as_secs());
        self.set("renewTime", now());
        self
    }

    fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.spec.insert(name.to_owned(), value.into());
    }

    /// Whether all that candidates write is the same.
    pub(super) fn has_spec_of(&self, other: &Self) -> bool {
        self.spec == other.spec
    }

    /// Tells the time for which its holder has it from every other.
    pub(super) fn tenure(&self) -> String {
        let acquired = self.spec.get("acquireTime").and_then(Value::as_str);
        let (holder, transitions) = (self.holder(), self.number("leaseTransitions"));
        format!(
            "{holder} since {} ({transitions})",
            acquired.unwrap_or("then")
        )
    }

    /// Empty without a holder.
    pub(super) fn holder(&self) -> &str {
        let holder = self.spec.get("holderIdentity");
        holder.and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn lives(&self) -> Duration {
        // An int32 in Kubernetes.
        let seconds = self.number("leaseDurationSeconds");
        Duration::from_secs(seconds.min(u64::from(u32::MAX)))
    }

    fn number(&self, name: &str) -> u64 {
        let number = self.spec.get(name).and_then(Value::as_u64);
        number.unwrap_or_default()
    }
}

/// Another's Lease, and since when it is unchanged, by the local clock.
#[derive(Debug)]
pub(super) struct ObservedLease {
    lease: Resource,
    since: Instant,
    /// Its holder is alive: the Lease has changed since it was first read.
    has_changed: bool,
}

impl ObservedLease {
    /// Whether a Lease that was just read can be taken: it has no holder, or has not changed for its duration.
    pub(super) fn is_free(seen: &mut Option<Self>, read: &Resource, now: Instant) -> bool {
        let seen = match seen {
            // Only the spec counts, not labels.
            Some(seen) if seen.lease.has_spec_of(read) => seen,
            before => {
                let has_changed = before.is_some();
                before.insert(Self {
                    lease: read.clone(),
                    since: now,
                    has_changed,
                })
            }
        };
        read.holder().is_empty() || now.saturating_duration_since(seen.since) >= read.lives()
    }

    pub(super) fn holder(&self) -> &str {
        self.lease.holder()
    }

    /// Whether its holder renews it: it has changed, or its renewal time is recent, if the two clocks agree.
    pub(super) fn is_kept(&self) -> bool {
        self.has_changed || self.is_recent()
    }

    fn is_recent(&self) -> bool {
        let renewed = self.lease.spec.get("renewTime").and_then(Value::as_str);
        let renewed = renewed.and_then(|time| time.parse::<Timestamp>().ok());
        renewed.is_some_and(|renewed| {
            Timestamp::now().duration_since(renewed).unsigned_abs() < self.lease.lives()
        })
    }
}

fn now() -> String {
    Timestamp::now().strftime(MICRO_TIME).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    fn read(spec: Value) -> Resource {
        let lease =
            json!({ "metadata": { "resourceVersion": "7", "labels": { "a": "b" } }, "spec": spec });
        Resource::read(lease).unwrap()
    }

    #[test]
    fn what_has_no_version_is_no_lease() {
        for lease in [
            json!(1),
            json!({}),
            json!({ "metadata": { "resourceVersion": 7 } }),
        ] {
            assert_eq!(Resource::read(lease.clone()), None, "{lease}");
        }
    }

    #[test]
    fn whoever_takes_over_is_a_transition_and_the_rest_stays() {
        let others =
            read(json!({ "holderIdentity": "a", "leaseTransitions": 3, "preferredHolder": "c" }));
        let taken = others.held("b", TTL);
        assert!(taken.is_held_by("b"));
        let renewed = taken.clone().held("b", TTL).into_value();
        assert_eq!(renewed["spec"]["acquireTime"], taken.spec["acquireTime"]);
        assert_eq!(renewed["spec"]["leaseTransitions"], 4);
        assert_eq!(renewed["spec"]["leaseDurationSeconds"], 15);
        assert_eq!(renewed["spec"]["preferredHolder"], "c");
        assert_eq!(renewed["metadata"]["resourceVersion"], "7");
        assert_eq!(renewed["metadata"]["labels"]["a"], "b");
        // A Lease that was created by hand may be empty.
        for empty in [json!({}), Value::Null] {
            assert_eq!(read(empty).held("b", TTL).number("leaseTransitions"), 1);
        }
        assert_eq!(
            Resource::new("jobs", "b", TTL).number("leaseTransitions"),
            0
        );
    }

    #[test]
    fn a_lease_is_anothers_until_it_has_not_changed_for_its_time() {
        let (mut seen, begun) = (None, Instant::now());
        let at = |renewed: &str| {
            read(json!({ "holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": renewed }))
        };
        let mut is_free = |lease: &Resource, after_ms: u64| {
            ObservedLease::is_free(&mut seen, lease, begun + Duration::from_millis(after_ms))
        };
        assert!(!is_free(&at("1"), 0));
        assert!(!is_free(&at("1"), 14_999));
        assert!(!is_free(&at("2"), 14_999));
        assert!(!is_free(&at("2"), 29_998));
        assert!(is_free(&at("2"), 29_999));
        assert!(is_free(&at("3").released(), 30_000));
        assert!(is_free(&read(json!({ "holderIdentity": "" })), 30_000));
        // The holder has given no duration.
        assert!(is_free(&read(json!({ "holderIdentity": "a" })), 30_000));
    }

    #[test]
    fn a_lease_renewed_long_ago_or_in_the_future_may_have_been_left() {
        let is_recent = |offset: i64| {
            let renewed = Timestamp::now() + jiff::SignedDuration::from_secs(offset);
            let renewed = renewed.strftime(MICRO_TIME).to_string();
            let spec =
                json!({ "holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": renewed });
            let mut seen = None;
            ObservedLease::is_free(&mut seen, &read(spec), Instant::now());
            seen.unwrap().is_recent()
        };
        assert!(is_recent(0) && is_recent(-10) && is_recent(10));
        assert!(!is_recent(-20) && !is_recent(20));
    }
}
