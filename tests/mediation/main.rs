//! The oracle of mediation, short: the same conversations that `make mediation` makes for long, and the known ways
//! around, word by word.
//!
//! What was found once is in a file of its own, by the names C1 to C7, H1, L2 and L3 that it was given then: [`names`],
//! [`encodings`], [`portals`], [`read_only`], [`tokens`], [`malformed`].
//!
//! `PGPALISADE_SEED` repeats a run: it is the seed of its first conversation, and a violation names its own.

mod encodings;
mod malformed;
mod names;
mod portals;
mod read_only;
mod script;
mod tokens;

use std::time::Duration;

use pgpalisade_tests::machine::seed;
use pgpalisade_tests::mediation::run::{Plan, run};

/// Sessions that may not write say anything, and change nothing.
#[test]
fn what_nobody_would_write_by_hand() {
    let report = run(&Plan {
        seed: seed(),
        conversations: u64::MAX,
        duration: Duration::from_secs(100),
        threads: 2,
        violations_max: 1,
    });
    println!("{report}");
    assert!(report.violations.is_empty(), "see above");
    assert!(report.conversations > 300, "only {}", report.conversations);
}
