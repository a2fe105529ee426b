//! How often something happened, and when.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use pgpalisade_fence::rejection::Enforcement;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    pub refused: u64,
    pub observed: u64,
    #[serde(serialize_with = "time")]
    pub first: Option<Timestamp>,
    #[serde(serialize_with = "time")]
    pub last: Option<Timestamp>,
}

#[expect(clippy::ref_option, reason = "the form that serde asks for")]
fn time<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| format!("{time:.6}")).serialize(serializer)
}

impl Count {
    pub(super) const fn new(count: u64, time: Timestamp, enforced: Enforcement) -> Self {
        let (refused, observed) = match enforced {
            Enforcement::Refused => (count, 0),
            Enforcement::Observed => (0, count),
        };
        Self {
            refused,
            observed,
            first: Some(time),
            last: Some(time),
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.refused += other.refused;
        self.observed += other.observed;
        // `None` is less than any time, and must not win as the earliest.
        self.first = match (self.first, other.first) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        self.last = self.last.max(other.last);
    }

    #[must_use]
    pub const fn total(&self) -> u64 {
        self.refused + self.observed
    }
}
