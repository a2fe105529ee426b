//! Clients that share a server connection. `make mediation ARGS='--sharing'` runs them for as long as asked.

use std::time::Duration;

use pgpalisade_judges::mediation::run::{LOOKED_AT, Plan, run};
use pgpalisade_judges::sharing::trial::Trial;

const CONVERSATIONS: u64 = 40;

#[test]
fn no_client_finds_what_another_has_left() {
    let report = run::<Trial>(&Plan {
        seed: 1,
        conversations: CONVERSATIONS,
        duration: Duration::MAX,
        threads: 2,
        violations_max: 1,
        looked_at: LOOKED_AT,
        sessions: Vec::new(),
        flags: Vec::new(),
    });
    println!("{report}");
    // A run proves nothing if nothing was shared or refused.
    assert!(report.shared > CONVERSATIONS / 10, "{report}");
    assert!(report.errors.contains_key("PF002"), "{report}");
    let violations = report.violations.iter().map(ToString::to_string);
    assert_eq!(violations.collect::<Vec<_>>(), Vec::<String>::new());
}
