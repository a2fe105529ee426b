//! The result of a check.

use clap::ValueEnum;
use serde::Serialize;

use crate::fence::readable::without_error_numbers;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CheckOutcome {
    /// As it should be.
    Ok,
    /// Works now, and may fail later.
    Warn,
    /// The proxy would not start, or takeovers would fail, or the fence would not hold.
    Fail,
    /// Not examined; the text says why.
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
    pub(crate) verdict: CheckResult,
}

/// The result of a check.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CheckResult {
    pub(crate) outcome: CheckOutcome,
    /// The observation, in one line.
    pub(crate) seen: String,
    /// Advice in one line. `None` if nothing is to be done.
    pub(crate) advice: Option<String>,
}

impl CheckResult {
    pub(super) fn ok(seen: impl Into<String>) -> Self {
        Self::new(CheckOutcome::Ok, seen.into(), None)
    }

    pub(super) fn warn(seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(CheckOutcome::Warn, seen.into(), Some(advice.into()))
    }

    pub(super) fn fail(seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(CheckOutcome::Fail, seen.into(), Some(advice.into()))
    }

    pub(super) fn skip(why: impl Into<String>) -> Self {
        Self::new(CheckOutcome::Skip, why.into(), None)
    }

    fn new(outcome: CheckOutcome, seen: String, advice: Option<String>) -> Self {
        Self {
            outcome,
            seen: without_error_numbers(&seen),
            advice,
        }
    }
}
