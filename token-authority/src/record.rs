//! What an authority keeps: marks, and the server sessions bound to them.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::{Declaration, Incarnation, Rank, Repair, RepairRequest, Token};

/// The most bytes of [`Mark::raised_by`].
const BY_MAX: usize = 200;

/// One server process of PostgreSQL. A pid alone is reused; with the start of the process it is unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    /// Process id, as in `pg_stat_activity.pid` and BackendKeyData.
    pub pid: i32,
    /// `pg_stat_activity.backend_start`, microseconds since the Unix epoch.
    pub started_us: i64,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (started {} us)", self.pid, self.started_us)
    }
}

/// The highest token that was accepted in a scope, and who brought it. Its [`Mark::rank`] never falls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The token.
    pub token: Token,
    /// How often the scope was repaired.
    pub incarnation: Incarnation,
    /// When it was raised, microseconds since the Unix epoch, by the authority's clock. For people; nothing
    /// is
    /// decided by it.
    pub raised_at: i64,
    /// Who raised it, in words for people.
    pub raised_by: String,
    /// The last repair of the scope, where it was repaired and that is known.
    pub repair: Option<Box<Repair>>,
}

impl Mark {
    /// A mark in a scope that was never repaired.
    #[must_use]
    pub fn new(token: Token, raised_at: i64, raised_by: String) -> Self {
        Self {
            token,
            incarnation: Incarnation::FIRST,
            raised_at,
            raised_by,
            repair: None,
        }
    }

    /// What it compares by.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        Rank {
            incarnation: self.incarnation,
            token: self.token,
        }
    }
}

/// A server session that is bound to a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Registered {
    /// The session.
    pub backend: Backend,
    /// The token it declared.
    pub token: Token,
    /// The incarnation of the scope in which it declared it.
    pub incarnation: Incarnation,
    /// When it declared it, microseconds since the Unix epoch. For people.
    pub since: i64,
}

impl Registered {
    /// What it compares by.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        Rank {
            incarnation: self.incarnation,
            token: self.token,
        }
    }
}

/// A mark as the stores keep it. What a scope that was never repaired has is written as format 1 has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MarkRow {
    pub(crate) token: Token,
    #[serde(default, skip_serializing_if = "Incarnation::is_first")]
    pub(crate) incarnation: Incarnation,
    pub(crate) raised_at: i64,
    pub(crate) raised_by: String,
    /// No session with a rank below that of the mark is left.
    pub(crate) drained: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) repair: Option<Box<Repair>>,
}

/// What a declaration would do to a mark.
pub(crate) enum Judged {
    /// It rises to this.
    Raise(MarkRow),
    /// It stays, and the session joins.
    Join(MarkRow),
    /// It stands above the token.
    Stale(MarkRow),
    /// The token is further above it than the declaration allows.
    TooFar(MarkRow),
}

impl MarkRow {
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            token: self.token,
            incarnation: self.incarnation,
            raised_at: self.raised_at,
            raised_by: self.raised_by.clone(),
            repair: self.repair.clone(),
        }
    }

    pub(crate) const fn rank(&self) -> Rank {
        Rank {
            incarnation: self.incarnation,
            token: self.token,
        }
    }

    /// The rank of a token in the scope's present incarnation.
    pub(crate) const fn rank_of(&self, token: Token) -> Rank {
        Rank {
            incarnation: self.incarnation,
            token,
        }
    }

    /// A mark that has just been raised: nobody has looked yet which lower sessions are left.
    pub(crate) fn raised(mark: &Mark) -> Self {
        Self {
            token: mark.token,
            incarnation: mark.incarnation,
            raised_at: mark.raised_at,
            raised_by: mark.raised_by.clone(),
            drained: false,
            repair: mark.repair.clone(),
        }
    }

    /// Judges a declaration. A token is always one of the scope's present incarnation: who declares does not know
    /// that there are any.
    pub(crate) fn judge(known: Option<Self>, declaration: &Declaration, now: i64) -> Judged {
        let token = declaration.token;
        let (incarnation, repair) = match known {
            Some(row) if row.token > token => return Judged::Stale(row),
            Some(row) if row.token == token => return Judged::Join(row),
            Some(row) if is_too_far(row.token, declaration) => return Judged::TooFar(row),
            Some(row) => (row.incarnation, row.repair),
            None => (Incarnation::FIRST, None),
        };
        Judged::Raise(Self {
            token,
            incarnation,
            raised_at: now,
            raised_by: cut_by(&declaration.by).to_owned(),
            drained: false,
            repair,
        })
    }

    /// The mark after a repair; `None` where the scope can be repaired no more.
    pub(crate) fn repaired(request: &RepairRequest) -> Option<Self> {
        let repair = &request.repair;
        let by = format!("repair by {}: {}", repair.by, repair.reason);
        Some(Self {
            token: repair.to,
            incarnation: request.expected.incarnation.next()?,
            raised_at: repair.at,
            raised_by: cut_by(&by).to_owned(),
            drained: false,
            repair: Some(Box::new(repair.clone())),
        })
    }

    /// Whether it is what this repair has left: its answer was lost, and it is asked for again.
    pub(crate) fn is_after(&self, request: &RepairRequest) -> bool {
        self.token == request.repair.to
            && Some(self.incarnation) == request.expected.incarnation.next()
            && self.repair.as_deref() == Some(&request.repair)
    }
}

fn is_too_far(mark: Token, declaration: &Declaration) -> bool {
    let step = declaration.token.get().saturating_sub(mark.get());
    declaration.max_step.is_some_and(|most| step > most)
}

/// Who declares, as it is kept with a mark: at most 200 bytes, whole characters.
pub(crate) fn cut_by(by: &str) -> &str {
    cut(by, BY_MAX)
}

/// The text, or as many whole characters of its beginning as fit.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// Now, in microseconds since the Unix epoch.
pub fn now_us() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}
