//! Counts by key, in bounded memory.

use std::collections::HashMap;
use std::hash::Hash;

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

/// Counts by key. Beyond its limit of keys, records are counted together.
#[derive(Debug)]
pub(super) struct Tally<K> {
    counts: HashMap<K, Count>,
    limit: usize,
    /// Records of all other keys.
    pub(super) beyond: Count,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TallyRow<K> {
    #[serde(flatten)]
    pub key: K,
    #[serde(flatten)]
    pub count: Count,
}

impl<K: Eq + Hash + Ord + Clone> Tally<K> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            counts: HashMap::new(),
            limit,
            beyond: Count::default(),
        }
    }

    pub(super) fn add(&mut self, key: K, one: &Count) {
        if let Some(count) = self.counts.get_mut(&key) {
            count.add(one);
        } else if self.counts.len() < self.limit {
            self.counts.insert(key, *one);
        } else {
            self.beyond.add(one);
        }
    }

    /// The highest counts first; equal ones ordered by key.
    pub(super) fn rows(&self) -> Vec<TallyRow<K>> {
        let row = |(key, count): (&K, &Count)| TallyRow {
            key: key.clone(),
            count: *count,
        };
        let mut rows: Vec<_> = self.counts.iter().map(row).collect();
        rows.sort_by(|a, b| {
            let by_count = b.count.total().cmp(&a.count.total());
            by_count.then_with(|| a.key.cmp(&b.key))
        });
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Count {
        let enforced = match second % 2 {
            0 => Enforcement::Refused,
            _ => Enforcement::Observed,
        };
        Count::new(1, Timestamp::new(second, 0).unwrap(), enforced)
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_lost() {
        let mut tally = Tally::<i64>::new(100);
        for key in 0..100_000 {
            tally.add(key, &at(key));
        }
        for second in 0..10 {
            tally.add(7, &at(second));
        }
        assert_eq!(tally.counts.len(), 100);
        let rows = tally.rows();
        let keys: Vec<i64> = rows.iter().take(3).map(|row| row.key).collect();
        assert_eq!(keys, [7, 0, 1]);
        let seven = rows.first().unwrap().count;
        assert_eq!((seven.refused, seven.observed), (5, 6));
        assert_eq!((seven.first, seven.last), (at(0).first, at(9).last));
        let counted: u64 = rows.iter().map(|row| row.count.total()).sum();
        assert_eq!(counted + tally.beyond.total(), 100_010);
        assert_eq!(
            (tally.beyond.first, tally.beyond.last),
            (at(100).first, at(99_999).last)
        );
    }
}
