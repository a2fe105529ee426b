//! Records of an authority: marks, and the server sessions registered for them.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::{Incarnation, NoIncarnation, Rank, Repair, RepairRequest, TakeId, Token};

/// Maximum bytes of [`Mark::raised_by`].
const BY_MAX: usize = 200;

/// Server process of PostgreSQL. A pid alone is reused; with the start of the process it is unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
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

/// The highest accepted token of a scope, and who brought it. Its [`Mark::rank`] never falls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The token.
    pub token: Token,
    /// Number of repairs of the scope.
    pub incarnation: Incarnation,
    /// Time of the raise by the authority's clock, microseconds since the Unix epoch. For people; no decision depends
    /// on it.
    pub raised_at: i64,
    /// Who raised it, for people.
    pub raised_by: String,
    /// The last repair of the scope, if there was one and it is known.
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

    /// Rank by which marks compare.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        Rank {
            incarnation: self.incarnation,
            token: self.token,
        }
    }

    pub(crate) fn repaired(request: &RepairRequest) -> Result<Self, NoIncarnation> {
        let repair = &request.repair;
        let by = format!("repair by {}: {}", repair.by, repair.reason);
        Ok(Self {
            token: repair.to,
            incarnation: request.expected.incarnation.next().ok_or(NoIncarnation)?,
            raised_at: repair.at,
            raised_by: cut_by(&by).to_owned(),
            repair: Some(Box::new(repair.clone())),
        })
    }

    /// Whether this very repair left this mark, so that a request whose answer was lost is repeated.
    pub(crate) fn is_after(&self, request: &RepairRequest) -> bool {
        self.token == request.repair.to
            && Some(self.incarnation) == request.expected.incarnation.next()
            && self.repair.as_deref() == Some(&request.repair)
    }
}

/// Server session that is registered for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub struct Registered {
    /// The session.
    pub backend: Backend,
    /// The token it declared.
    pub token: Token,
    /// Incarnation of the scope at the declaration.
    pub incarnation: Incarnation,
    /// Time of the declaration, microseconds since the Unix epoch. For people.
    pub since: i64,
}

impl Registered {
    /// Rank by which registrations compare.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        Rank {
            incarnation: self.incarnation,
            token: self.token,
        }
    }
}

/// Mark as the stores keep it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkRow {
    /// The mark.
    pub mark: Mark,
    /// No session with a rank below the mark's is left.
    pub drained: bool,
    /// Take that raised the mark.
    pub taken: Option<TakeId>,
}

impl MarkRow {
    /// A mark just raised: lower sessions have not been looked for yet.
    #[must_use]
    pub const fn raised(mark: Mark) -> Self {
        Self {
            mark,
            drained: false,
            taken: None,
        }
    }

    pub(crate) const fn rank(&self) -> Rank {
        self.mark.rank()
    }

    pub(crate) fn with_drained(mut self, drained: bool) -> Self {
        self.drained = drained;
        self
    }

    /// Whether a recovery raises the mark of a scope to this one.
    pub(crate) fn is_below(known: Option<&Self>, mark: &Mark) -> bool {
        known.is_none_or(|row| row.rank() < mark.rank())
    }
}

/// Who declares, as kept with a mark: at most 200 bytes, whole characters.
pub(crate) fn cut_by(by: &str) -> &str {
    cut(by, BY_MAX)
}

/// The text, or as many whole characters of its beginning as fit.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max))
        .unwrap_or_default()
}

/// A record as JSON. None of their types can fail to serialize.
pub(crate) fn json(record: &impl Serialize) -> String {
    serde_json::to_string(record).unwrap_or_default()
}

/// Current time, in microseconds since the Unix epoch.
pub fn now_us() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

/// A time in microseconds since the Unix epoch, as people write it.
#[must_use]
pub fn utc(us: i64) -> String {
    jiff::Timestamp::from_microsecond(us).map_or_else(
        |_| format!("{us} us"),
        |time| time.strftime("%Y-%m-%d %H:%M:%S%.3f UTC").to_string(),
    )
}
