//! Reads a history and checks the guarantee, without knowing how the history came about.
//!
//! - **G1** no commit of a lower token after the log position at which a declaration was acknowledged.
//! - **G2** the first snapshot of a new holder has every row of lower tokens that exists in the end.
//! - **G3** no declaration is acknowledged that began after a higher one had been acknowledged.
//! - **G4** refused writes are absent, confirmed writes are present, even after crashes.
//! - **G5** no refusal for a higher token that nobody has tried to declare, or for a missing token.
//! - **G6** a declaration is answered in time, and fails only in promised ways.
//! - **Take** no two takes get the same token, and `after:33` gets 34 or nothing.
//! - **Term** a listener's connections are closed before the token of the next term is given, unless the store has
//!   lost the lease.
//! - **Row** writers that share one row by read-modify-write lose no confirmed number.
//!
//! **History** is a history that contradicts itself: the run then proves nothing.

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

/// Takes time linear in the history's length except for sorting.
pub fn check(events: &[Event]) -> Report {
    let history = History::new(events);
    let mut violations = Vec::new();
    history.contradictions(&mut violations);
    order::no_stale_commit(&history, &mut violations);
    order::no_late_surprise(&history, &mut violations);
    order::marks_only_rise(&history, &mut violations);
    order::takes_are_single(&history, &mut violations);
    order::terms_do_not_overlap(&history, &mut violations);
    order::honest_answers(&history, &mut violations);
    liveness::no_self_fencing(&history, &mut violations);
    liveness::bounded_takeover(&history, &mut violations);
    shared_row::nothing_lost(&history, &mut violations);
    let mut counts = history.counts();
    counts.slowest_ms = liveness::slowest_ns(&history) / 1_000_000;
    Report { counts, violations }
}
