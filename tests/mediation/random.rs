//! Random conversations. `make mediation` runs them for as long as asked.

use std::time::Duration;

use pgpalisade_judges::mediation::conversation::Session;
use pgpalisade_judges::mediation::run::{LOOKED_AT, Plan, run};
use pgpalisade_judges::mediation::trial::Trial;
use pgpalisade_test_servers::machine;

/// Includes the start of the servers.
const DURATION: Duration = Duration::from_secs(25);

#[test]
fn no_conversation_changes_what_its_session_may_not() {
    let seed = machine::seed();
    println!("seed {seed}");
    let report = run::<Trial>(&Plan {
        seed,
        conversations: u64::MAX,
        duration: DURATION,
        threads: 2,
        violations_max: 1,
        looked_at: LOOKED_AT,
        sessions: Session::all(),
        flags: Vec::new(),
    });
    println!("{report}");
    // A run proves nothing if hardly anything ran or nothing was refused.
    assert!(report.conversations > 100, "{report}");
    assert!(report.errors.contains_key("PF002"), "{report}");
    let violations = report.violations.iter().map(ToString::to_string);
    assert_eq!(violations.collect::<Vec<_>>(), Vec::<String>::new());
}
