//! Writers without a token that take turns in a scope: two that both believe to lead, found before any code uses
//! tokens.
//!
//! A writer is an application on a host. Two writers overlap if each has written again after the other, within
//! `IDLE`. A writer that only replaces another does not overlap.

use std::collections::{HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

/// Time without a turn after which an overlap has ended.
const IDLE: SignedDuration = SignedDuration::from_secs(60);
/// Limit of known writers of a scope. Beyond it the one that was quiet for longest is forgotten.
const WRITERS: usize = 16;
/// Limit of scopes with known writers. Later scopes are ignored.
const SCOPES: usize = 1000;
const KEPT: usize = 1000;
/// The second turn shows that the first writer is still there.
const TURNS: u64 = 2;

/// An application on a host, as its sessions name them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OverlapWriter {
    pub application: Option<String>,
    /// `None`: the proxy's own machine.
    pub host: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overlap {
    pub scope: String,
    /// In the order in which they began.
    pub writers: [OverlapWriter; 2],
    pub since: Timestamp,
    /// Last turn so far.
    pub until: Timestamp,
    /// Number of times that one has written after the other.
    pub turns: u64,
}

impl Overlap {
    pub fn duration(&self) -> SignedDuration {
        self.until.duration_since(self.since)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Overlaps {
    scopes: HashMap<String, ScopeWriters>,
    ended: VecDeque<Overlap>,
}

#[derive(Debug, Default)]
struct ScopeWriters {
    last: Vec<(OverlapWriter, Timestamp)>,
    pairs: Vec<Overlap>,
}

impl Overlaps {
    pub(crate) fn note(&mut self, scope: &str, writer: OverlapWriter, at: Timestamp) {
        if !self.scopes.contains_key(scope) && self.scopes.len() >= SCOPES {
            return;
        }
        let writers = self.scopes.entry(scope.to_owned()).or_default();
        let ended = writers.note(scope, writer, at);
        let room = KEPT.saturating_sub(ended.len());
        let surplus = self.ended.len().saturating_sub(room);
        self.ended.drain(..surplus);
        self.ended.extend(ended);
    }

    /// All known overlaps, the latest first.
    pub(crate) fn list(&self) -> Vec<Overlap> {
        let under_way = self.scopes.values().flat_map(|writers| &writers.pairs);
        let under_way = under_way.filter(|pair| pair.turns >= TURNS);
        let mut all: Vec<Overlap> = self.ended.iter().chain(under_way).cloned().collect();
        all.sort_by(|a, b| (b.since, &b.scope).cmp(&(a.since, &a.scope)));
        all
    }
}

impl ScopeWriters {
    /// Notes a write, and returns the overlaps that have ended before it.
    fn note(&mut self, scope: &str, writer: OverlapWriter, at: Timestamp) -> Vec<Overlap> {
        let is_over = |pair: &Overlap| at.duration_since(pair.until) > IDLE;
        let over: Vec<Overlap> = self.pairs.extract_if(.., |pair| is_over(pair)).collect();
        for (other, last) in &self.last {
            if *other == writer || at.duration_since(*last) > IDLE {
                continue;
            }
            let is_theirs = |pair: &&mut Overlap| {
                pair.writers.contains(other) && pair.writers.contains(&writer)
            };
            match self.pairs.iter_mut().find(is_theirs) {
                // The later writer had the first turn, the earlier one the second.
                Some(pair) => {
                    let had_last = usize::from(pair.turns % 2 == 1);
                    if pair.writers.get(had_last) != Some(&writer) {
                        pair.turns += 1;
                        pair.until = at;
                    }
                }
                None => self.pairs.push(Overlap {
                    scope: scope.to_owned(),
                    writers: [other.clone(), writer.clone()],
                    since: at,
                    until: at,
                    turns: 1,
                }),
            }
        }
        self.wrote(writer, at);
        over.into_iter()
            .filter(|pair| pair.turns >= TURNS)
            .collect()
    }

    fn wrote(&mut self, writer: OverlapWriter, at: Timestamp) {
        if let Some((_, last)) = self.last.iter_mut().find(|(known, _)| *known == writer) {
            *last = at;
            return;
        }
        if self.last.len() >= WRITERS
            && let Some(quiet) =
                (0..self.last.len()).min_by_key(|place| self.last.get(*place).map(|(_, at)| *at))
        {
            self.last.swap_remove(quiet);
        }
        self.last.push((writer, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlaps(writes: &[(&str, i64)]) -> Overlaps {
        let mut overlaps = Overlaps::default();
        for (host, second) in writes {
            let writer = OverlapWriter {
                application: Some("worker".to_owned()),
                host: Some((*host).to_owned()),
            };
            overlaps.note("jobs", writer, Timestamp::from_second(*second).unwrap());
        }
        overlaps
    }

    /// Hosts, beginning, duration and turns of each overlap.
    fn found(writes: &[(&str, i64)]) -> Vec<(String, i64, i64, u64)> {
        let overlaps = overlaps(writes).list();
        let row = |overlap: &Overlap| {
            let [a, b] = overlap
                .writers
                .each_ref()
                .map(|writer| writer.host.clone().unwrap());
            let since = overlap.since.as_second();
            (a + &b, since, overlap.duration().as_secs(), overlap.turns)
        };
        overlaps.iter().map(row).collect()
    }

    fn row(who: &str, since: i64, seconds: i64, turns: u64) -> (String, i64, i64, u64) {
        (who.to_owned(), since, seconds, turns)
    }

    #[test]
    fn one_that_follows_another_is_no_overlap() {
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[("a", 0), ("a", 1), ("a", 2)]), []);
        assert_eq!(
            found(&[("a", 0), ("a", 1), ("b", 2), ("b", 3), ("b", 4)]),
            []
        );
        assert_eq!(found(&[("a", 0), ("b", 1), ("c", 2)]), []);
        // Much later: two changes of leaders.
        assert_eq!(
            found(&[("a", 0), ("b", 1), ("b", 2), ("a", 70), ("b", 140)]),
            []
        );
    }

    #[test]
    fn whoever_comes_back_overlaps() {
        assert_eq!(found(&[("a", 0), ("b", 1), ("a", 2)]), [row("ab", 1, 1, 2)]);
        assert_eq!(
            found(&[("a", 0), ("a", 1), ("b", 2), ("b", 3), ("a", 9), ("b", 43)]),
            [row("ab", 2, 41, 3)]
        );
        // Further writes of the same writer are not turns.
        assert_eq!(
            found(&[("a", 0), ("b", 1), ("b", 50), ("a", 60), ("a", 61)]),
            [row("ab", 1, 59, 2)]
        );
    }

    #[test]
    fn one_that_has_ended_is_kept_and_the_next_is_another() {
        let twice = [
            ("a", 0),
            ("b", 1),
            ("a", 2),
            ("a", 100),
            ("b", 101),
            ("a", 102),
            ("b", 103),
        ];
        assert_eq!(found(&twice), [row("ab", 101, 2, 3), row("ab", 1, 1, 2)]);
    }

    #[test]
    fn of_three_each_two_are_told() {
        let mut three = found(&[("a", 0), ("b", 1), ("c", 2), ("a", 3), ("b", 4)]);
        three.sort();
        assert_eq!(
            three,
            [row("ab", 1, 3, 3), row("ac", 2, 1, 2), row("bc", 2, 2, 2)]
        );
    }

    #[test]
    fn it_does_not_grow() {
        let mut overlaps = Overlaps::default();
        let writer = |number: i64| OverlapWriter {
            application: Some(format!("made up {}", number % 3)),
            host: Some(number.to_string()),
        };
        for number in 0..5000 {
            let at = Timestamp::from_second(number * 10).unwrap();
            overlaps.note(&format!("scope {}", number % 1500), writer(number), at);
            overlaps.note("jobs", writer(number % 2), at);
            overlaps.note("jobs", writer(number + 7), at);
        }
        assert_eq!(overlaps.scopes.len(), SCOPES);
        for each in overlaps.scopes.values() {
            assert!(each.last.len() <= WRITERS, "{}", each.last.len());
            assert!(
                each.pairs.len() <= WRITERS * WRITERS,
                "{}",
                each.pairs.len()
            );
        }
        for number in 0..3000 {
            for host in ["a", "b", "a"] {
                let writer = OverlapWriter {
                    application: None,
                    host: Some(host.to_owned()),
                };
                let at = Timestamp::from_second(100_000 + number * 100).unwrap();
                overlaps.note("jobs", writer, at);
            }
        }
        assert_eq!(overlaps.ended.len(), KEPT);
    }
}
