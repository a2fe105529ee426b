//! The verdict: can the fence be switched on, what would have been refused to whom, and what to do about it.

use std::cmp::Reverse;

use serde::Serialize;

use super::{Count, Report, Understood};
use pgpalisade_fence::readable::counted;
use pgpalisade_fence::rejection::RejectionKind;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Who {
    #[serde(skip)]
    pub(crate) kind: String,
    pub scope: Option<String>,
    pub user: String,
    pub application: Option<String>,
    pub database: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhoCount {
    #[serde(flatten)]
    pub who: Who,
    #[serde(flatten)]
    pub count: Count,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Readiness {
    /// Only deposed leaders would have been refused.
    Ready,
    /// The same, but records are missing.
    Incomplete,
    /// Other requests would have been refused.
    NotYet,
    /// The fence was always on, and also refused requests other than those of deposed leaders.
    OnWithWork,
    /// The fence was always on, and refused only deposed leaders.
    On,
    NothingRecorded,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    pub(crate) answer: Readiness,
    pub headline: String,
    pub findings: Vec<Finding>,
    /// Limits of the figures.
    pub cautions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub kind: String,
    #[serde(flatten)]
    pub count: Count,
    pub advice: &'static str,
    pub who: Vec<WhoCount>,
    pub others: Count,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Todo {
    Nothing,
    /// The applications or the policy must change.
    Something,
}

const fn advice(kind: RejectionKind) -> (Todo, &'static str) {
    match kind {
        RejectionKind::StaleToken => (
            Todo::Nothing,
            "Writes of leaders that had been deposed: refusing these is what the fence is for. If two of these lead \
             at the same time, each needs a scope of its own.",
        ),
        RejectionKind::SessionEnded | RejectionKind::OutcomeUnknown => (
            Todo::Nothing,
            "Sessions of leaders deposed while connected: ending these is what the fence is for.",
        ),
        RejectionKind::NoToken => (
            Todo::Something,
            "Writes without a token. Let each of these declare the token of its election: \
             SET fencing.token = <number>, or options='-c fencing.token=<number>'. If it is not a leader's work, give \
             it a [[session]] rule with writes = \"allow\" in the policy file.",
        ),
        RejectionKind::InvalidToken => (
            Todo::Something,
            "Tokens that cannot be accepted: not a number, further ahead than the policy allows, or set in the \
             middle of a transaction. Correct the client, or the limits in the policy file.",
        ),
        RejectionKind::Policy => (
            Todo::Something,
            "Refused whatever the token. Allow it in the policy file, or let these connect to PostgreSQL directly.",
        ),
        RejectionKind::AuthorityUnavailable => (
            Todo::Something,
            "Declarations that the authority could not store. See the proxy's log, and run \"pgpalisade check\".",
        ),
        RejectionKind::TakeoverIncomplete => (
            Todo::Something,
            "Takeovers that could not be completed. See the proxy's log, check its control connection, and run \
             \"pgpalisade check\".",
        ),
        RejectionKind::LeaseHeld => (
            Todo::Nothing,
            "Candidates that waited for a lease while another session held it. This is normal.",
        ),
        RejectionKind::DeposedPrimary => (
            Todo::Something,
            "Sessions on a server that is no longer the primary. Point the proxy's upstream and control connection \
             to the new primary.",
        ),
    }
}

fn judge(kind: &str) -> (Todo, &'static str) {
    kind.parse().map_or(
        (
            Todo::Something,
            "This version of pgpalisade does not know this kind. Read the log with the version that wrote it.",
        ),
        advice,
    )
}

pub(super) fn reach(report: &Report, top: usize) -> Advice {
    let understood = &report.understood;
    let mut all: Vec<(&Who, &Count)> = report.who.iter().collect();
    all.sort_by_key(|(who, count)| (Reverse(count.total()), *who));
    let mut findings: Vec<Finding> = Vec::new();
    let mut open = Count::default();
    for (who, count) in all {
        let (todo, advice) = judge(&who.kind);
        if todo == Todo::Something {
            open.add(count);
        }
        let known = findings.iter().position(|known| known.kind == who.kind);
        let place = known.unwrap_or(findings.len());
        if known.is_none() {
            findings.push(Finding {
                kind: who.kind.clone(),
                count: Count::default(),
                advice,
                who: Vec::new(),
                others: Count::default(),
            });
        }
        if let Some(finding) = findings.get_mut(place) {
            finding.add(who, *count, top);
        }
    }
    findings.sort_by_key(|finding| Reverse(finding.count.total()));
    // Records without a row may be of any kind.
    open.add(&report.beyond);
    let answer = match answer(&report.total, &open) {
        Readiness::Ready | Readiness::NothingRecorded if understood.dropped > 0 => {
            Readiness::Incomplete
        }
        answer => answer,
    };
    Advice {
        answer,
        headline: headline(answer, &open),
        findings,
        cautions: cautions(understood, &report.beyond),
    }
}

impl Finding {
    fn add(&mut self, who: &Who, count: Count, top: usize) {
        self.count.add(&count);
        if self.who.len() < top {
            let who = who.clone();
            self.who.push(WhoCount { who, count });
        } else {
            self.others.add(&count);
        }
    }
}

const fn answer(total: &Count, open: &Count) -> Readiness {
    match (total.observed, open.observed, open.refused) {
        (0, _, _) if total.refused == 0 => Readiness::NothingRecorded,
        (0, _, 0) => Readiness::On,
        (0, _, _) => Readiness::OnWithWork,
        (_, 0, _) => Readiness::Ready,
        (_, _, _) => Readiness::NotYet,
    }
}

fn headline(answer: Readiness, open: &Count) -> String {
    match answer {
        Readiness::Ready => "the fence can be switched on. It would have refused only deposed leaders, which is what \
            it is for."
            .to_owned(),
        Readiness::Incomplete => "unknown. The records would allow switching the fence on, but some are missing. \
            Observe for longer, and use --since."
            .to_owned(),
        Readiness::NotYet => format!(
            "not yet. With the fence on, {} that no takeover explains would have been refused.",
            counted(open.observed, "request")
        ),
        Readiness::On => {
            "the fence is on, and it refused only deposed leaders, which is what it is for.".to_owned()
        }
        Readiness::OnWithWork => format!(
            "the fence is on, and it refused {} that no takeover explains.",
            counted(open.refused, "request")
        ),
        Readiness::NothingRecorded => "nothing is recorded, which does not tell whether the fence can be switched on: \
             either nothing would have been refused, or nothing came through the proxy. Make sure that every \
             application used it in this time, in observe mode and with this log."
            .to_owned(),
    }
}

fn cautions(understood: &Understood, others: &Count) -> Vec<String> {
    let mut cautions = Vec::new();
    if understood.dropped > 0 {
        cautions.push(format!(
            "{} not in the log: the proxy dropped what came too fast, or could not write it. Sessions that are not \
             listed may be among them.",
            counted(understood.dropped, "record")
        ));
    }
    if understood.unauthenticated > 0 {
        cautions.push(format!(
            "{} before the login was authenticated. Anyone who reaches the proxy can cause these, under any name, so \
             they are not counted. An application whose connection string has a wrong token is among them: its lines \
             in the log have \"authenticated\": false.",
            counted(understood.unauthenticated, "refusal")
        ));
    }
    if understood.foreign_lines > 0 {
        cautions.push(format!(
            "{} could not be read. Sessions that are not listed may be among them.",
            counted(understood.foreign_lines, "line")
        ));
    }
    if others.total() > 0 {
        cautions.push(format!(
            "{} came from more users and applications than are counted separately. Use --since and --scope \
             to see them.",
            counted(others.total(), "record")
        ));
    }
    cautions
}
