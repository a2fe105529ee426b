//! Takeovers as they went, for people: who led when, and what a change of the leader has ended.

use serde::{Deserialize, Serialize};

use crate::record::{cut, cut_by};
use crate::{Incarnation, Mark, Rank, Scope, Token};

/// How a takeover went. Nothing is decided by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeoverRecord {
    /// The mark before, as far as the proxy knew it.
    pub from: Option<Token>,
    /// What the mark was raised to.
    pub to: Token,
    /// The incarnation of the scope.
    pub incarnation: Incarnation,
    /// When, microseconds since the Unix epoch, as [`Mark::raised_at`].
    pub raised_at: i64,
    /// By whom, in words for people.
    pub raised_by: String,
    /// How it ended.
    pub end: TakeoverEnd,
    /// What it has ended.
    #[serde(flatten)]
    pub work: TakeoverWork,
}

/// What a takeover had to do until no session of a lower token was left.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeoverWork {
    /// How many sessions were ended.
    pub sessions: u64,
    /// How many of them had a transaction open, which was rolled back unless its COMMIT was under way.
    pub transactions: u64,
    /// How long that took, in microseconds.
    pub took_us: u64,
}

/// How a takeover ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TakeoverEnd {
    /// Refusals are only observed: nobody was ended.
    Observed,
    /// Sessions of lower tokens were left, and why. Who declares the token again goes on with it.
    Incomplete(String),
    /// No session of a lower token was left.
    Complete,
}

impl TakeoverRecord {
    /// Of each scope so many are kept.
    pub const KEPT: usize = 16;
    /// Of all scopes so many are listed.
    pub const LISTED: usize = 200;
    /// The most bytes of a reason.
    const WHY_MAX: usize = 300;

    /// One that had nothing to do.
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

    /// With this end, and what was done until then.
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

    const fn rank(&self) -> Rank {
        Rank {
            incarnation: self.incarnation,
            token: self.to,
        }
    }

    /// Another attempt at the same takeover: each is told by what says the most.
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

/// The last takeovers of one scope, the oldest first.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct History(Vec<TakeoverRecord>);

impl History {
    /// Adds one, or what there is to say of one that was noted before. The oldest makes room.
    pub(crate) fn note(&mut self, record: &TakeoverRecord) {
        let rank = record.rank();
        match self.0.iter_mut().find(|known| known.rank() == rank) {
            Some(known) => known.attempted(record.clone()),
            None => {
                let at = self.0.partition_point(|known| known.rank() < rank);
                self.0.insert(at, record.clone());
            }
        }
        let surplus = self.0.len().saturating_sub(TakeoverRecord::KEPT);
        self.0.drain(..surplus);
    }

    /// As it is stored. What cannot be read is as good as nothing: it is for people, and may hold up nothing else.
    pub(crate) fn read(scope: &Scope, json: &[u8]) -> Self {
        serde_json::from_slice(json).unwrap_or_else(|error| {
            tracing::warn!(%scope, %error, "what is kept of the takeovers of a scope cannot be read");
            Self::default()
        })
    }

    /// To store it. None of its types can fail to be written.
    pub(crate) fn write(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The last takeovers of several scopes, the newest first, as many as are listed.
    pub(crate) fn list(
        all: impl IntoIterator<Item = (Scope, Self)>,
    ) -> Vec<(Scope, TakeoverRecord)> {
        let each = |(scope, Self(history)): (Scope, Self)| {
            let named = move |record| (scope.clone(), record);
            history.into_iter().map(named)
        };
        let mut list: Vec<_> = all.into_iter().flat_map(each).collect();
        list.sort_by_key(|(_, record)| std::cmp::Reverse((record.raised_at, record.rank())));
        list.truncate(TakeoverRecord::LISTED);
        list
    }
}
