//! What is measured. Each case does what the proxy does for one message, and nothing around it.

mod admission;
pub(crate) mod classification;
mod framing;
mod ledger;
mod refusal;
mod requirement;

use std::error::Error;
use std::time::Instant;

use pgpalisade_policies::{Lexing, TextEncoding};

use crate::timing::Run;

/// One row of the table.
pub(crate) struct Case {
    /// Short: the part, and what of it.
    pub(crate) name: &'static str,
    /// What is done once.
    pub(crate) what: &'static str,
    /// So many times a call does it.
    pub(crate) times: u32,
    /// What it may take, in nanoseconds.
    pub(crate) goal_ns: Option<f64>,
    pub(crate) size: Size,
    make: fn() -> Made,
}

/// How long a call takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// Microseconds at most.
    Small,
    /// Milliseconds, so that few calls say all.
    Large,
}

/// What a case runs, or why it cannot be made.
pub(crate) type Made = Result<Run, Box<dyn Error>>;

/// 100 bytes, as an application sends them.
const INSERT: &str = "INSERT INTO job_result (job_id, worker, finished_at, result) \
    VALUES ($1, $2, now(), $3) RETURNING id";
const _: () = assert!(INSERT.len() == 100);

/// What pgbench -S sends.
const POINT_SELECT: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = $1";

const SAFE: Lexing = Lexing::with_unknown_strings(TextEncoding::AsciiSafe);

/// All of them, in the order of the table.
pub(crate) fn cases() -> Vec<Case> {
    let parts = [
        framing::cases(),
        classification::cases(),
        requirement::cases(),
        admission::cases(),
        refusal::cases(),
        ledger::cases(),
    ];
    parts.into_iter().flatten().collect()
}

impl Case {
    /// A small case that a call does once.
    const fn new(name: &'static str, what: &'static str, make: fn() -> Made) -> Self {
        Self {
            name,
            what,
            times: 1,
            goal_ns: None,
            size: Size::Small,
            make,
        }
    }

    const fn times(self, times: u32) -> Self {
        Self { times, ..self }
    }

    const fn goal(self, nanoseconds: f64) -> Self {
        Self {
            goal_ns: Some(nanoseconds),
            ..self
        }
    }

    const fn large(self) -> Self {
        Self {
            size: Size::Large,
            ..self
        }
    }

    /// Makes what it runs.
    ///
    /// # Errors
    ///
    /// Why that is not possible: a part of the proxy does not do what the case is about.
    pub(crate) fn make(&self) -> Result<Run, crate::Error> {
        (self.make)().map_err(|error| crate::Error::Case {
            case: self.name,
            why: error.to_string(),
        })
    }
}

/// Runs a call as often as it is told to.
fn repeat(mut call: impl FnMut() + 'static) -> Run {
    Box::new(move |calls| {
        let start = Instant::now();
        for _ in 0..calls {
            call();
        }
        start.elapsed()
    })
}
