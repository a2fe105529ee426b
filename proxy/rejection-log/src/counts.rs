//! Numbers of rejections by kind, including those whose record was dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use pgpalisade_fence::rejection::{Enforcement, RejectionKind};

const KINDS: usize = RejectionKind::ALL.len();

/// Numbers of rejections, including those whose record was dropped. Every session's thread adds to them. They do not
/// order other memory accesses.
#[derive(Debug, Default)]
pub struct Counters {
    refused: [AtomicU64; KINDS],
    observed: [AtomicU64; KINDS],
    unproved: AtomicU64,
    dropped: AtomicU64,
}

impl Counters {
    pub fn count(&self, kind: RejectionKind, enforced: Enforcement) {
        if let Some(counter) = self.counters(enforced).get(kind.index()) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn count_unproved(&self) {
        self.unproved.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// The count of one kind.
    pub fn of(&self, kind: RejectionKind, enforced: Enforcement) -> u64 {
        let counter = self.counters(enforced).get(kind.index());
        counter.map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// The count of all kinds.
    pub(super) fn total(&self, enforced: Enforcement) -> u64 {
        let counters = self.counters(enforced).iter();
        counters.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Rejections before the login was authenticated. No other count includes them.
    pub(super) fn unproved(&self) -> u64 {
        self.unproved.load(Ordering::Relaxed)
    }

    /// Records that were dropped because the writer could not keep up.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.total(Enforcement::Refused) + self.total(Enforcement::Observed) + self.unproved() == 0
    }

    /// Text for people: `3 (no_token 2, policy 1)`.
    pub(super) fn by_kind(&self, enforced: Enforcement) -> String {
        let total = self.total(enforced);
        let counts = RejectionKind::ALL
            .iter()
            .map(|&kind| (kind, self.of(kind, enforced)));
        let came = counts.filter(|(_, count)| *count > 0);
        let came: Vec<String> = came
            .map(|(kind, count)| format!("{} {count}", kind.as_str()))
            .collect();
        if came.is_empty() {
            return total.to_string();
        }
        format!("{total} ({})", came.join(", "))
    }

    const fn counters(&self, enforced: Enforcement) -> &[AtomicU64; KINDS] {
        match enforced {
            Enforcement::Refused => &self.refused,
            Enforcement::Observed => &self.observed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_counter_of_its_own() {
        let counters = Counters::default();
        assert!(counters.is_zero());
        let enforcements = [Enforcement::Refused, Enforcement::Observed];
        // A different number for each, so that no two counters can be swapped.
        let expected = |kind: RejectionKind, enforced: Enforcement| {
            let place = RejectionKind::ALL.iter().position(|k| *k == kind);
            1 + place.unwrap_or_default() as u64
                + if enforced == Enforcement::Observed {
                    100
                } else {
                    0
                }
        };
        for &kind in RejectionKind::ALL {
            for enforced in enforcements {
                for _ in 0..expected(kind, enforced) {
                    counters.count(kind, enforced);
                }
            }
        }
        for &kind in RejectionKind::ALL {
            for enforced in enforcements {
                assert_eq!(
                    counters.of(kind, enforced),
                    expected(kind, enforced),
                    "{kind:?}"
                );
            }
        }
        assert_eq!(counters.total(Enforcement::Refused), 55);
        assert_eq!(counters.total(Enforcement::Observed), 1055);
    }

    #[test]
    fn only_kinds_that_came_are_named() {
        let counters = Counters::default();
        counters.count(RejectionKind::Policy, Enforcement::Observed);
        counters.count(RejectionKind::NoToken, Enforcement::Observed);
        counters.count(RejectionKind::NoToken, Enforcement::Observed);
        assert_eq!(
            counters.by_kind(Enforcement::Observed),
            "3 (no_token 2, policy 1)"
        );
        assert_eq!(counters.by_kind(Enforcement::Refused), "0");
    }
}
