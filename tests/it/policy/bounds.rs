//! Bounds for tokens: a poison token is refused, whichever way it comes, and the mark stays where it was.

use pgpalisade_tests::policy::PolicyFile;
use pgpalisade_tests::stage::Stage;
use pgpalisade_tests::wire::{Message, PROTOCOL_3_0, Wire, pretty};

use super::{SETUP, assert_refused};

const POISON: &str = "9223372036854775807";

/// Where only issued numbers count, the mark rises by takes and by nothing else.
#[test]
fn a_number_that_was_not_issued_is_refused() {
    let policy = "[scope.jobs]\ntables = [\"*.notes\"]\nnumbers = \"issued\"\n";
    let stage = Stage::governed(SETUP, &PolicyFile::new(policy));
    let mut wire = stage.plain();
    // In a scope that has no mark, too.
    for number in ["1", "7", POISON] {
        let refused = wire.query(&format!("SET fencing.token = 'jobs={number}'"));
        assert_eq!(refused[0].sqlstate(), "PF003");
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
    ] {
        assert_refused(&mut wire, &sql, "PF003");
    }
    let mut login = Wire::connect(&stage.proxy.endpoint());
    let parameters = [
        ("user", "postgres"),
        ("database", "postgres"),
        ("fencing.token", POISON),
    ];
    login.startup(PROTOCOL_3_0, &parameters);
    let answer = login.until_closed();
    let error = answer.iter().find(|message| message.tag == b'E');
    assert_eq!(
        error.map(Message::sqlstate).as_deref(),
        Some("PF003"),
        "{}",
        pretty(&answer)
    );
    // Nobody was ended, and nothing was raised.
    leader.ok("INSERT INTO notes VALUES (1)");
    assert_eq!(leader.rows("SHOW fencing.mark"), [["34000"]]);
    wire.ok("SET fencing.token = 'default=35000,jobs=100'");
    wire.ok("INSERT INTO notes VALUES (2)");
}
