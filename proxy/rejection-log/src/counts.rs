//! Numbers of rejections by kind, including those whose record was dropped.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use pgpalisade_fence::rejection::{Enforcement, RejectionKind};

const KINDS: usize = RejectionKind::ALL.len();

/// Counters that every session's thread adds to. They do not order other memory accesses.
#[derive(Debug, Default)]
pub struct Counters {
    refused: [AtomicU64; KINDS],
    observed: [AtomicU64; KINDS],
    unproved: AtomicU64,
    dropped: AtomicU64,
}

impl Counters {
    pub fn count(&self, kind: RejectionKind, enforced: Enforcement) {
        let counters = match enforced {
            Enforcement::Refused => &self.refused,
            Enforcement::Observed => &self.observed,
        };
        if let Some(counter) = counters.get(kind.index()) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn count_unproved(&self) {
        self.unproved.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> RejectionCounts {
        let read = |counters: &[AtomicU64; KINDS]| {
            counters
                .each_ref()
                .map(|counter| counter.load(Ordering::Relaxed))
        };
        RejectionCounts {
            refused: read(&self.refused),
            observed: read(&self.observed),
            unproved: self.unproved.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RejectionCounts {
    refused: [u64; KINDS],
    observed: [u64; KINDS],
    unproved: u64,
    dropped: u64,
}

impl RejectionCounts {
    pub fn of(&self, kind: RejectionKind, enforced: Enforcement) -> u64 {
        let counts = self.counts(enforced);
        counts.get(kind.index()).copied().unwrap_or_default()
    }

    pub(crate) fn total(&self, enforced: Enforcement) -> u64 {
        self.counts(enforced).iter().sum()
    }

    /// Rejections before authentication. No other count includes them.
    pub(crate) const fn unproved(&self) -> u64 {
        self.unproved
    }

    /// Records dropped because the writer could not keep up.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn is_zero(&self) -> bool {
        self.total(Enforcement::Refused) + self.total(Enforcement::Observed) + self.unproved == 0
    }

    pub(super) const fn by_kind(&self, enforced: Enforcement) -> ByKind<'_> {
        ByKind {
            counts: self,
            enforced,
        }
    }

    const fn counts(&self, enforced: Enforcement) -> &[u64; KINDS] {
        match enforced {
            Enforcement::Refused => &self.refused,
            Enforcement::Observed => &self.observed,
        }
    }
}

pub(super) struct ByKind<'a> {
    counts: &'a RejectionCounts,
    enforced: Enforcement,
}

impl fmt::Display for ByKind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.counts.total(self.enforced))?;
        let counts = RejectionKind::ALL.map(|kind| (kind, self.counts.of(kind, self.enforced)));
        let came = counts.iter().filter(|(_, count)| *count > 0);
        for (number, (kind, count)) in came.clone().enumerate() {
            let before = if number == 0 { " (" } else { ", " };
            write!(f, "{before}{} {count}", kind.as_str())?;
        }
        f.write_str(if came.count() > 0 { ")" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_counter_of_its_own() {
        let counters = Counters::default();
        assert!(counters.read().is_zero());
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
        for kind in RejectionKind::ALL {
            for enforced in enforcements {
                for _ in 0..expected(kind, enforced) {
                    counters.count(kind, enforced);
                }
            }
        }
        let counts = counters.read();
        for kind in RejectionKind::ALL {
            for enforced in enforcements {
                assert_eq!(
                    counts.of(kind, enforced),
                    expected(kind, enforced),
                    "{kind:?}"
                );
            }
        }
        assert_eq!(counts.total(Enforcement::Refused), 55);
        assert_eq!(counts.total(Enforcement::Observed), 1055);
    }

    #[test]
    fn only_kinds_that_came_are_named() {
        let counters = Counters::default();
        counters.count(RejectionKind::Policy, Enforcement::Observed);
        counters.count(RejectionKind::NoToken, Enforcement::Observed);
        counters.count(RejectionKind::NoToken, Enforcement::Observed);
        let counts = counters.read();
        assert_eq!(
            counts.by_kind(Enforcement::Observed).to_string(),
            "3 (no_token 2, policy 1)"
        );
        assert_eq!(counts.by_kind(Enforcement::Refused).to_string(), "0");
    }
}
