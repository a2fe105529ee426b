//! The result of a check.

use clap::ValueEnum;
use pgpalisade_fence::readable::without_error_numbers;
use pgpalisade_takeover::ControlError;
use serde::Serialize;

/// Limit of names in one line.
const NAMED: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CheckOutcome {
    Ok,
    /// Works now, and may fail later.
    Warn,
    /// The proxy would not start, takeovers would fail, or the fence would not hold.
    Fail,
    Skip,
}

/// The checks, in order. Scripts know their names and meanings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Check {
    Config,
    Files,
    Declare,
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
    Listeners,
    WaysIn,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    pub(crate) id: Check,
    #[serde(flatten)]
    pub(crate) verdict: CheckResult,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct CheckResult {
    pub(crate) outcome: CheckOutcome,
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

    pub(super) fn unanswered(error: &ControlError) -> Self {
        Self::fail(
            format!("the query failed: {error}"),
            "look at the server's log",
        )
    }

    fn new(outcome: CheckOutcome, seen: String, advice: Option<String>) -> Self {
        Self {
            outcome,
            seen: without_error_numbers(&seen),
            advice,
        }
    }
}

impl From<Result<Self, ControlError>> for CheckResult {
    fn from(answered: Result<Self, ControlError>) -> Self {
        answered.unwrap_or_else(|error| Self::unanswered(&error))
    }
}

/// The first names, and the number of the others.
pub(super) fn listed(names: impl IntoIterator<Item = String>) -> String {
    let mut names: Vec<String> = names.into_iter().collect();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let named = names.join(", ");
    match more {
        0 => named,
        _ => format!("{named} and {more} more"),
    }
}
