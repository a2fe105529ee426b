//! What an authority keeps: marks, and the server sessions bound to them.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::Token;

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

/// The highest token that was accepted in a scope, and who brought it. It never falls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The token.
    pub token: Token,
    /// When it was raised, microseconds since the Unix epoch, by the authority's clock. For people; nothing
    /// is
    /// decided by it.
    pub raised_at: i64,
    /// Who raised it, in words for people.
    pub raised_by: String,
}

/// A server session that is bound to a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Registered {
    /// The session.
    pub backend: Backend,
    /// The token it declared.
    pub token: Token,
    /// When it declared it, microseconds since the Unix epoch. For people.
    pub since: i64,
}

/// A mark as the stores keep it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MarkRow {
    pub(crate) token: Token,
    pub(crate) raised_at: i64,
    pub(crate) raised_by: String,
    /// No session with a token below `token` is left.
    pub(crate) drained: bool,
}

impl MarkRow {
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            token: self.token,
            raised_at: self.raised_at,
            raised_by: self.raised_by.clone(),
        }
    }

    /// A mark that has just been raised: nobody has looked yet which lower sessions are left.
    pub(crate) fn raised(mark: &Mark) -> Self {
        Self {
            token: mark.token,
            raised_at: mark.raised_at,
            raised_by: mark.raised_by.clone(),
            drained: false,
        }
    }
}

/// Who declares, as it is kept with a mark: at most 200 bytes, whole characters.
pub(crate) fn cut_by(by: &str) -> &str {
    let mut end = by.len().min(BY_MAX);
    while !by.is_char_boundary(end) {
        end -= 1;
    }
    by.get(..end).unwrap_or_default()
}

/// Now, in microseconds since the Unix epoch.
pub fn now_us() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}
