//! What a check has found.

use serde::Serialize;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// As it should be.
    Ok,
    /// It works, and may not always.
    Warn,
    /// The proxy would not start, or takeovers would fail, or the fence would not hold.
    Fail,
    /// It could not be looked at; the text says why.
    Skip,
}

/// One check and its result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    /// The stable name of the check, one of [`CHECKS`].
    pub(crate) id: &'static str,
    pub(crate) outcome: Outcome,
    /// What was seen, in one line.
    pub(crate) seen: String,
    /// What to do, in one line. `None` where nothing is to be done.
    pub(crate) advice: Option<String>,
}

/// Names of the checks, in the order in which they run. Scripts know them: none may change its meaning.
pub(crate) const CHECKS: [&str; 18] = [
    CONFIG,
    DECLARE,
    UPSTREAM,
    CONTROL,
    PRIMARY,
    RIGHTS,
    SUPERUSERS,
    DIRECT,
    SAME_SERVER,
    CONNECTIONS,
    PREPARED,
    WITNESS,
    AUTHORITY,
    CLUSTER,
    PROXIES,
    MARKS,
    SESSIONS,
    TAKEOVERS,
];

pub(super) const CONFIG: &str = "config";
pub(super) const DECLARE: &str = "declare";
pub(super) const UPSTREAM: &str = "upstream";
pub(super) const CONTROL: &str = "control";
pub(super) const PRIMARY: &str = "primary";
pub(super) const RIGHTS: &str = "rights";
pub(super) const SUPERUSERS: &str = "superusers";
pub(super) const DIRECT: &str = "direct";
pub(super) const SAME_SERVER: &str = "same-server";
pub(super) const CONNECTIONS: &str = "connections";
pub(super) const PREPARED: &str = "prepared";
pub(super) const WITNESS: &str = "witness";
pub(super) const AUTHORITY: &str = "authority";
pub(super) const CLUSTER: &str = "cluster";
pub(super) const PROXIES: &str = "proxies";
pub(super) const MARKS: &str = "marks";
pub(super) const SESSIONS: &str = "sessions";
pub(super) const TAKEOVERS: &str = "takeovers";

/// A result that does not know yet which check it belongs to.
#[derive(Debug, Clone)]
pub(super) struct Verdict {
    outcome: Outcome,
    seen: String,
    advice: Option<String>,
}

impl Verdict {
    pub(super) fn ok(seen: impl Into<String>) -> Self {
        Self::new(Outcome::Ok, seen.into(), None)
    }

    pub(super) fn warn(seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Outcome::Warn, seen.into(), Some(advice.into()))
    }

    pub(super) fn fail(seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Outcome::Fail, seen.into(), Some(advice.into()))
    }

    pub(super) fn skip(why: impl Into<String>) -> Self {
        Self::new(Outcome::Skip, why.into(), None)
    }

    fn new(outcome: Outcome, seen: String, advice: Option<String>) -> Self {
        Self {
            outcome,
            seen,
            advice,
        }
    }

    pub(super) fn of(self, id: &'static str) -> Finding {
        Finding {
            id,
            outcome: self.outcome,
            seen: self.seen,
            advice: self.advice,
        }
    }
}
