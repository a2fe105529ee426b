//! What a check has found.

use clap::ValueEnum;
use serde::Serialize;

use crate::fence::readable::without_error_numbers;

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

/// The checks, in the order in which they run. Scripts know their names: none may change its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Check {
    Config,
    User,
    Files,
    Rejections,
    Declare,
    Upstream,
    Logins,
    Control,
    Primary,
    Rights,
    Superusers,
    Direct,
    SameServer,
    Connections,
    Prepared,
    Witness,
    Authority,
    Elections,
    Cluster,
    Proxies,
    Marks,
    Sessions,
    Takeovers,
    WaysIn,
    Listen,
}

/// One check and its result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    pub(crate) id: Check,
    #[serde(flatten)]
    pub(crate) verdict: Verdict,
}

/// The result of a check.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    pub(crate) outcome: Outcome,
    /// What was seen, in one line.
    pub(crate) seen: String,
    /// What to do, in one line. `None` where nothing is to be done.
    pub(crate) advice: Option<String>,
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
            seen: without_error_numbers(&seen),
            advice,
        }
    }
}
