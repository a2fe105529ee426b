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
pub(super) struct Tally<K, V = ()> {
    counts: HashMap<K, (Count, V)>,
    limit: usize,
    beyond: Count,
}

/// The keys with the highest counts, and all others together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Top<K, V = ()> {
    pub rows: Vec<TallyRow<K, V>>,
    pub others: Count,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TallyRow<K, V = ()> {
    #[serde(flatten)]
    pub key: K,
    #[serde(flatten)]
    pub count: Count,
    /// From the first record.
    #[serde(flatten)]
    pub value: V,
}

impl<K: Eq + Hash + Ord + Clone, V: Clone> Tally<K, V> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            counts: HashMap::new(),
            limit,
            beyond: Count::default(),
        }
    }

    /// Counts one record. `first` makes the value of a new key.
    pub(super) fn add(&mut self, key: K, one: &Count, first: impl FnOnce() -> V) {
        if let Some((count, _)) = self.counts.get_mut(&key) {
            count.add(one);
        } else if self.counts.len() < self.limit {
            self.counts.insert(key, (*one, first()));
        } else {
            self.beyond.add(one);
        }
    }

    /// The highest counts first; equal ones ordered by key.
    pub(super) fn top(&self, rows: usize) -> Top<K, V> {
        let mut all: Vec<_> = self.counts.iter().collect();
        all.sort_by(|(key, (count, _)), (other_key, (other, _))| {
            let by_count = other.total().cmp(&count.total());
            by_count.then_with(|| key.cmp(other_key))
        });
        let mut others = self.beyond;
        for (_, (count, _)) in all.iter().skip(rows) {
            others.add(count);
        }
        let row = |(key, (count, value)): (&K, &(Count, V))| TallyRow {
            key: key.clone(),
            count: *count,
            value: value.clone(),
        };
        Top {
            rows: all.into_iter().take(rows).map(row).collect(),
            others,
        }
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
            tally.add(key, &at(key), || ());
        }
        for second in 0..10 {
            tally.add(7, &at(second), || ());
        }
        assert_eq!(tally.counts.len(), 100);
        let top = tally.top(3);
        let keys: Vec<i64> = top.rows.iter().map(|row| row.key).collect();
        assert_eq!(keys, [7, 0, 1]);
        let seven = top.rows.first().unwrap().count;
        assert_eq!((seven.refused, seven.observed), (5, 6));
        assert_eq!((seven.first, seven.last), (at(0).first, at(9).last));
        let rows: u64 = top.rows.iter().map(|row| row.count.total()).sum();
        assert_eq!(rows + top.others.total(), 100_010);
        assert_eq!(
            (top.others.first, top.others.last),
            (at(2).first, at(99_999).last)
        );
    }
}
