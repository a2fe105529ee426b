//! Bounds for tokens: a poison token is refused, in whatever way it comes, and the mark stays.

use pgpalisade_test_servers::machine::assert_says;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Wire, assert_error, pretty};

use super::{SETUP, assert_refused};

const POISON: &str = "9223372036854775807";

/// With `numbers = "issued"` only takes raise the mark.
#[test]
fn a_number_that_was_not_issued_is_refused() {
    let policy = "[scope.jobs]\ntables = [\"*.notes\"]\nnumbers = \"issued\"\n";
    let stage = Stage::governed(SETUP, &PolicyFile::new(policy));
    let mut wire = stage.plain();
    // Even in a scope without a mark.
    for number in ["1", "7", POISON] {
        let refused = wire.fails(&format!("SET fencing.token = 'jobs={number}'"), "PF003");
        let text = pretty(&refused);
        assert!(text.contains("numbers of scope \"jobs\""), "{text}");
    }
    let mut leader = stage.plain();
    for (take, mark) in [("lease", 1), ("next", 2), ("after:2", 3)] {
        leader.ok(&format!("SET fencing.token = 'jobs={take}'"));
        let mut beside = stage.leader(&format!("jobs={mark}"));
        beside.ok("INSERT INTO notes VALUES (1)");
        let above = format!("SET fencing.token = 'jobs={}'", mark + 1);
        assert_refused(&mut wire, &above, "PF003");
        leader.ok("INSERT INTO notes VALUES (2)");
    }
    assert_refused(&mut wire, "SET fencing.token = 'jobs=2'", "PF001");
    wire.ok("SET fencing.token = 'other=7'");
}

#[test]
fn a_poison_token_is_refused_and_changes_nothing() {
    let policy = "[tokens]\nmax_step = 1000\n\n[scope.jobs]\nmax_token = 100\n";
    let stage = Stage::governed(SETUP, &PolicyFile::new(policy));
    // The first token of a scope may be any.
    let mut leader = stage.leader("34000");
    let mut wire = stage.plain();
    for sql in [
        format!("SET fencing.token = {POISON}"),
        "SET fencing.token = 35001".to_owned(),
        "SET fencing.token = 'jobs=101'".to_owned(),
        "SET fencing.token = 'default=34001,jobs=101'".to_owned(),
    ] {
        assert_refused(&mut wire, &sql, "PF003");
    }
    let mut login = Wire::open(&stage.proxy.endpoint(), &[("fencing.token", POISON)]);
    assert_error(&login.until_closed(), "PF003");
    // No session was ended, and no mark raised.
    leader.ok("INSERT INTO notes VALUES (1)");
    assert_eq!(leader.rows("SHOW fencing.mark"), [["34000"]]);
    wire.ok("SET fencing.token = 'default=35000,jobs=100'");
    wire.ok("INSERT INTO notes VALUES (2)");
}

/// No number follows the highest. Every take is told that, rather than of a bound or of a token that nobody holds.
#[test]
fn nothing_follows_the_highest_token() {
    let policy = "[tokens]\nmax_scopes = 10\n";
    let stage = Stage::governed(SETUP, &PolicyFile::new(policy));
    let mut poisoned = stage.leader(POISON);
    let mut wire = stage.plain();
    let after = format!("after:{POISON}");
    // Twice, since a lease that could not be used is not kept.
    for claim in ["next", &after, "lease:nowait", "lease", "lease:15s", "next"] {
        let refused = wire.fails(&format!("SET fencing.token = '{claim}'"), "PF003");
        let text = pretty(&refused);
        for part in [
            "no fencing token is left in scope \"default\"",
            &format!("The session claims \"{claim}\". The mark of scope"),
            &format!("No token is higher than {POISON}"),
            "pgpalisade scope repair",
        ] {
            assert!(text.contains(part), "{claim}: {part} is missing in {text}");
        }
        assert!(
            !text.contains("token 1 ") && !text.contains("max_"),
            "{text}"
        );
    }
    // A lower number is stale, and the highest itself is the mark.
    assert_refused(&mut wire, "SET fencing.token = 34", "PF001");
    assert_refused(&mut wire, "SET fencing.token = 'after:34'", "PF001");
    stage.leader(POISON).ok("INSERT INTO notes VALUES (1)");
    poisoned.ok("INSERT INTO notes VALUES (2)");
    // Declaring the epoch could raise it so high that it cannot rise any more.
    wire.fails("SET fencing.token = 'pgpalisade.epoch=9'", "PF003");
    // A take without a number yet is not called number 1.
    let reserved = pretty(&wire.query("SET fencing.token = 'pgpalisade.epoch=next'"));
    assert_says(&reserved, "fencing token \"next\" is out of bounds");
}
