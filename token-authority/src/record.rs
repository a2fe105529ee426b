//! Records of an authority: marks, and the server sessions registered for them.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::{
    Claim, Declaration, Declared, Incarnation, Rank, Repair, RepairRequest, TakeId, Token,
};

/// Maximum bytes of [`Mark::raised_by`].
const BY_MAX: usize = 200;

/// Server process of PostgreSQL. A pid alone is reused; with the start of the process it is unique.
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

    /// The mark after a repair; `None` after the last possible incarnation.
    pub(crate) fn repaired(request: &RepairRequest) -> Option<Self> {
        let repair = &request.repair;
        let by = format!("repair by {}: {}", repair.by, repair.reason);
        Some(Self {
            token: repair.to,
            incarnation: request.expected.incarnation.next()?,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Registered {
    /// The session.
    pub backend: Backend,
    /// The token it declared.
    pub token: Token,
    /// Incarnation of the scope at the declaration.
    pub(crate) incarnation: Incarnation,
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
pub(crate) struct MarkRow {
    pub(crate) mark: Mark,
    /// No session with a rank below the mark's is left.
    pub(crate) drained: bool,
    /// Take that raised the mark.
    pub(crate) taken: Option<TakeId>,
}

/// Effect of a declaration on a mark.
pub(crate) enum Judged {
    /// The mark rises to this.
    Raise(MarkRow),
    /// The mark stays, and the session joins it.
    Join(MarkRow),
    /// The mark is above the token.
    Stale(MarkRow),
    /// The mark stays: the token is too far above it, or the mark is below the one that a take names.
    Refused(Declared),
}

impl Judged {
    fn too_far(row: MarkRow) -> Self {
        Self::Refused(Declared::TooFar { mark: row.mark })
    }

    fn lower(row: Option<MarkRow>) -> Self {
        let mark = row.map(|row| row.mark);
        Self::Refused(Declared::MarkIsLower { mark })
    }
}

impl MarkRow {
    pub(crate) const fn rank(&self) -> Rank {
        self.mark.rank()
    }

    /// Rank of a token in the scope's present incarnation.
    pub(crate) const fn rank_of(&self, token: Token) -> Rank {
        Rank {
            incarnation: self.mark.incarnation,
            token,
        }
    }

    /// A mark just raised: lower sessions have not been looked for yet.
    pub(crate) const fn raised(mark: Mark) -> Self {
        Self {
            mark,
            drained: false,
            taken: None,
        }
    }

    /// Judges a declaration. Its token belongs to the scope's present incarnation, because clients do not know of
    /// incarnations.
    pub(crate) fn judge(known: Option<Self>, declaration: &Declaration, now: i64) -> Judged {
        let (token, known) = match Self::claimed(known, declaration) {
            Ok(claimed) => claimed,
            Err(judged) => return judged,
        };
        let (incarnation, repair) = match known {
            Some(row) if row.mark.token > token => return Judged::Stale(row),
            Some(row) if row.mark.token == token => return Judged::Join(row),
            Some(row) if is_too_far(row.mark.token, token, declaration) => {
                return Judged::too_far(row);
            }
            Some(row) => (row.mark.incarnation, row.mark.repair),
            None => (Incarnation::FIRST, None),
        };
        Judged::Raise(Self {
            taken: declaration.take.filter(|_| declaration.claim.is_take()),
            ..Self::raised(Mark {
                incarnation,
                repair,
                ..Mark::new(token, now, cut_by(&declaration.by).to_owned())
            })
        })
    }

    /// The token that a declaration asks for, with the mark, unless a take names another mark.
    fn claimed(
        known: Option<Self>,
        declaration: &Declaration,
    ) -> Result<(Token, Option<Self>), Judged> {
        let claim = declaration.claim;
        if let Claim::Token(token) = claim {
            return Ok((token, known));
        }
        let mark = known.as_ref().map(|row| row.mark.token);
        let next = mark.map_or(Some(Token::MIN), Token::next);
        match (claim, known) {
            (_, Some(row)) if row.is_taken_by(declaration) => Err(Judged::Join(row)),
            (Claim::After(read), Some(row)) if mark > read => Err(Judged::Stale(row)),
            (Claim::After(read), known) if mark < read => Err(Judged::lower(known)),
            (_, known) => match (next, known) {
                (Some(next), known) => Ok((next, known)),
                (None, Some(row)) => Err(Judged::too_far(row)),
                (None, None) => Err(Judged::lower(None)),
            },
        }
    }

    /// Whether this very take raised the mark, and is repeated because its answer was lost.
    fn is_taken_by(&self, declaration: &Declaration) -> bool {
        let is_own = declaration.take.is_some() && self.taken == declaration.take;
        let named = declaration.claim.token();
        is_own && named.is_none_or(|token| token == self.mark.token)
    }
}

fn is_too_far(mark: Token, token: Token, declaration: &Declaration) -> bool {
    let step = token.get().saturating_sub(mark.get());
    let is_high = declaration.max_token.is_some_and(|most| token.get() > most);
    declaration.max_step.is_some_and(|most| step > most) || (is_high && declaration.claim.is_take())
}

/// Who declares, as kept with a mark: at most 200 bytes, whole characters.
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

/// Current time, in microseconds since the Unix epoch.
pub fn now_us() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}
