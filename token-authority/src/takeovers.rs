//! History of takeovers, for people: who led when, and what a change of leader ended.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::record::{cut, cut_by};
use crate::{Incarnation, Mark, Rank, Scope, Token};

/// Record of a takeover. No decision depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeoverRecord {
    /// Mark before, as far as the proxy knew it.
    pub from: Option<Token>,
    /// Mark after.
    pub to: Token,
    pub(crate) incarnation: Incarnation,
    /// Time, microseconds since the Unix epoch, as [`Mark::raised_at`].
    pub raised_at: i64,
    /// Who raised the mark, for people.
    pub raised_by: String,
    /// How it ended.
    pub end: TakeoverEnd,
    /// What it has ended.
    #[serde(flatten)]
    pub work: TakeoverWork,
}

/// Work of a takeover until no session of a lower token was left.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeoverWork {
    /// Number of ended sessions.
    pub sessions: u64,
    /// Number of them with an open transaction, rolled back unless its COMMIT was in progress.
    pub transactions: u64,
    /// Duration, in microseconds.
    pub took_us: u64,
}

/// End of a takeover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TakeoverEnd {
    /// Refusals are only observed: no session was ended.
    Observed,
    /// Sessions of lower tokens were left, with the reason. The next declaration of the token continues the takeover.
    Incomplete(String),
    /// No session of a lower token was left.
    Complete,
}

impl TakeoverRecord {
    /// Records kept for each scope.
    pub const KEPT: usize = 16;
    /// Records listed for all scopes.
    pub const LISTED: usize = 200;
    const WHY_MAX: usize = 300;

    /// A record without work.
    #[must_use]
    pub fn new(from: Option<Token>, mark: &Mark, end: TakeoverEnd) -> Self {
        Self {
            from,
            to: mark.token,
            incarnation: mark.incarnation,
            raised_at: mark.raised_at,
            raised_by: cut_by(&mark.raised_by).to_owned(),
            end,
            work: TakeoverWork::default(),
        }
    }

    /// The record with this end, and the work until then.
    #[must_use]
    pub fn ended(mut self, end: TakeoverEnd, work: TakeoverWork) -> Self {
        self.end = match end {
            TakeoverEnd::Incomplete(why) => {
                TakeoverEnd::Incomplete(cut(&why, Self::WHY_MAX).to_owned())
            }
            end => end,
        };
        self.work = work;
        self
    }

    /// Rank by which records compare.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        Rank {
            incarnation: self.incarnation,
            token: self.to,
        }
    }

    /// Merges another attempt at the same takeover. Each field keeps the value that says the most.
    fn attempted(&mut self, again: Self) {
        self.from = self.from.or(again.from);
        if self.end != TakeoverEnd::Complete && again.end != TakeoverEnd::Observed {
            self.end = again.end;
        }
        let (work, more) = (&mut self.work, again.work);
        work.sessions = work.sessions.max(more.sessions);
        work.transactions = work.transactions.max(more.transactions);
        work.took_us = work.took_us.max(more.took_us);
    }
}

/// Last takeovers of one scope, oldest first.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct History(Vec<TakeoverRecord>);

impl History {
    /// Adds records, and drops the oldest beyond the limit.
    pub(crate) fn note(&mut self, records: &[TakeoverRecord]) {
        for record in records {
            self.add(record);
        }
        let surplus = self.0.len().saturating_sub(TakeoverRecord::KEPT);
        self.0.drain(..surplus);
    }

    /// Adds a record, or merges it into an earlier one of the same takeover.
    fn add(&mut self, record: &TakeoverRecord) {
        let rank = record.rank();
        match self.0.iter_mut().find(|known| known.rank() == rank) {
            Some(known) => known.attempted(record.clone()),
            None => {
                let at = self.0.partition_point(|known| known.rank() < rank);
                self.0.insert(at, record.clone());
            }
        }
    }

    /// Reads stored records. Unreadable ones are skipped, because no decision depends on them.
    pub(crate) fn read(scope: &Scope, json: &[u8]) -> Self {
        let all: Vec<serde_json::Value> = serde_json::from_slice(json).unwrap_or_else(|error| {
            tracing::debug!(%scope, %error, "the stored takeovers of a scope cannot be read");
            Vec::new()
        });
        let read = all.into_iter().map(serde_json::from_value);
        Self(read.filter_map(Result::ok).collect())
    }

    /// The last takeovers of several scopes, newest first, up to the limit. The last one of each scope comes before
    /// earlier ones, so that a busy scope does not hide a quiet one.
    pub(crate) fn list(
        all: impl IntoIterator<Item = (Scope, Self)>,
    ) -> Vec<(Scope, TakeoverRecord)> {
        let newest_first =
            |(_, record): &(Scope, TakeoverRecord)| Reverse((record.raised_at, record.rank()));
        let (mut last, mut earlier) = (Vec::new(), Vec::new());
        for (scope, Self(mut history)) in all {
            let newest = history.pop();
            earlier.extend(history.into_iter().map(|record| (scope.clone(), record)));
            last.extend(newest.map(|record| (scope, record)));
        }
        last.sort_by_key(newest_first);
        earlier.sort_by_key(newest_first);
        last.extend(earlier);
        last.truncate(TakeoverRecord::LISTED);
        last.sort_by_key(newest_first);
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::json;

    fn record(to: u64, raised_at: i64) -> TakeoverRecord {
        let mark = Mark::new(Token::new(to).unwrap(), raised_at, "test".to_owned());
        TakeoverRecord::new(None, &mark, TakeoverEnd::Complete)
    }

    #[test]
    fn busy_scopes_do_not_hide_the_last_takeover_of_another() {
        let history = |begin: i64| {
            let all = (0..16).map(|step| record(step + 1, begin + i64::try_from(step).unwrap()));
            History(all.collect())
        };
        let quiet: Scope = "quiet".parse().unwrap();
        let busy = (0..30).map(|number| (format!("busy{number}").parse().unwrap(), history(1_000)));
        let list = History::list(busy.chain([(quiet.clone(), history(1))]));
        assert_eq!(list.len(), TakeoverRecord::LISTED);
        let found: Vec<_> = list.iter().filter(|(scope, _)| *scope == quiet).collect();
        assert_eq!(found, [&(quiet.clone(), record(16, 16))]);
        assert!(list.is_sorted_by_key(|(_, record)| Reverse(record.raised_at)));
    }

    #[test]
    fn what_cannot_be_read_hides_nothing_else() {
        let scope: Scope = "s".parse().unwrap();
        let mut history = History(vec![record(1, 1), record(2, 2)]);
        let mut stored: serde_json::Value = serde_json::from_str(&json(&history)).unwrap();
        stored.as_array_mut().unwrap()[0]["to"] = 0.into();
        let read = History::read(&scope, stored.to_string().as_bytes());
        history.0.remove(0);
        assert_eq!(read, history);
        for damaged in ["", "{]", "7", "[7]"] {
            assert_eq!(
                History::read(&scope, damaged.as_bytes()),
                History::default()
            );
        }
    }
}
