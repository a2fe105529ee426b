//! Reads a history and says whether the guarantee held. It knows nothing of how the history came about.
//!
//! - **G1** no commit of a lower token behind the position where a declaration was acknowledged.
//! - **G2** the first snapshot of a new holder has every row of lower tokens that there is in the end.
//! - **G3** no declaration is acknowledged that began after a higher one had been acknowledged.
//! - **G4** what was refused is not there, what was confirmed is there, also after crashes.
//! - **G5** nobody is refused for a higher token that nobody has tried to declare, or for having none.
//! - **G6** a declaration is answered in time, and fails only in the ways that are promised.
//! - **Take** no two takes get one token, and `after:33` gets 34 or nothing.
//! - **Row** writers that share one row by read-modify-write lose nothing that was confirmed.
//!
//! **History** stands for a history that contradicts itself: then the run proves nothing.

mod exempt;
mod indexed;
mod liveness;
mod order;
mod report;
mod shared_row;
#[cfg(test)]
mod tests;

pub use report::{Counts, Report, Rule, Violation};

use super::history::Event;
use indexed::History;

/// Checks everything. Takes time in proportion to the history's length, but for sorting.
pub fn check(events: &[Event]) -> Report {
    let history = History::new(events);
    let mut violations = Vec::new();
    history.contradictions(&mut violations);
    order::no_stale_commit(&history, &mut violations);
    order::no_late_surprise(&history, &mut violations);
    order::marks_only_rise(&history, &mut violations);
    order::takes_are_single(&history, &mut violations);
    order::honest_answers(&history, &mut violations);
    liveness::no_self_fencing(&history, &mut violations);
    liveness::bounded_takeover(&history, &mut violations);
    shared_row::nothing_lost(&history, &mut violations);
    let mut counts = history.counts();
    counts.slowest_ms = liveness::slowest_ns(&history) / 1_000_000;
    Report { counts, violations }
}
