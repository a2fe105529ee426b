//! Locks without a number: the proxy takes the token after the mark, and PostgreSQL knows its number.

mod lease;
mod lock_delay;
mod unanswered;

use pgpalisade_test_servers::machine::assert_says;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, Wire, assert_error, errors, pretty, trusted};

const SETUP: &str =
    "CREATE TABLE jobs (id int, token text DEFAULT current_setting('fencing.token', true))";

fn stage() -> Stage {
    Stage::with(SETUP)
}

#[track_caller]
fn value(wire: &mut Wire, sql: &str) -> String {
    wire.rows(sql).concat().concat()
}

/// Asserts that SHOW, SQL and a default all return the session's token.
#[track_caller]
fn assert_holds(wire: &mut Wire, token: &str) {
    assert_eq!(value(wire, "SHOW fencing.token"), token);
    let setting = "SELECT current_setting('fencing.token')";
    assert_eq!(value(wire, setting), token);
    let written = "INSERT INTO jobs VALUES (1) RETURNING token";
    assert_eq!(value(wire, written), token);
}

/// Asserts that the reply is a single error with this SQLSTATE.
#[track_caller]
fn assert_refused(answer: &[Message], sqlstate: &str) -> String {
    assert_error(answer, sqlstate);
    pretty(answer)
}

#[test]
fn who_slept_is_refused() {
    let stage = stage();
    let (mut one, mut other) = (stage.plain(), stage.plain());
    for wire in [&mut one, &mut other] {
        assert_eq!(value(wire, "SHOW fencing.mark"), "");
    }
    one.ok("SET fencing.token = 'after:0'");
    assert_holds(&mut one, "1");
    let refused = assert_refused(&other.query("SET fencing.token = 'after:0'"), "PF001");
    for words in [
        "the next fencing token of scope \"default\" is taken: its mark is 1",
        "The session claims \"after:0\". The mark of scope \"default\" was raised to 1 at ",
        "read SHOW fencing.mark, check that this process still holds the lock",
    ] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    assert_eq!(value(&mut other, "SHOW fencing.mark"), "1");
    other.ok("SET fencing.token = 'after:1'");
    assert_holds(&mut other, "2");
    let ended = one.query("INSERT INTO jobs VALUES (2)");
    assert_refused(&ended, "PF001");
    let ahead = stage.plain().query("SET fencing.token = 'after:7'");
    let ahead = assert_refused(&ahead, "PF003");
    assert!(ahead.contains("its mark is 2"), "{ahead}");
    assert_holds(&mut other, "2");
}

#[test]
fn every_way_to_say_it_gives_the_number() {
    let stage = stage();
    let mut wire = stage.plain();
    let ways = [
        "SET fencing.token = next",
        "SET SESSION fencing.token TO 'next'",
        "SET fencing.token = 'after:2'",
        "SELECT set_config('fencing.token', 'next', false)",
        "SELECT pg_catalog.set_config('fencing.token', 'after:4', false)",
    ];
    for (token, way) in (1..).zip(ways) {
        wire.ok(way);
        assert_holds(&mut wire, &token.to_string());
    }
    // The session continues under no lower token.
    for (token, way) in (6..).zip([
        "SET fencing.token = 'next'",
        "SET fencing.token = 'after:6'",
    ]) {
        wire.extended(way);
        assert_holds(&mut wire, &token.to_string());
    }
    wire.ok("SET fencing.token = 'scheduler=next'");
    assert_holds_scoped(&mut wire, "scheduler=1");
    wire.ok("SET fencing.token = 'scheduler=after:1,default=after:7'");
    assert_holds_scoped(&mut wire, "scheduler=2,default=8");
    wire.ok("SET fencing.token = 'default=next,scheduler=2'");
    assert_holds_scoped(&mut wire, "default=9,scheduler=2");
    let refused = wire.query("SET fencing.token = 'default=next,scheduler=after:1'");
    assert_refused(&refused, "PF001");
    let found = value(&mut wire, "SHOW fencing.token");
    assert_eq!(found, "default=9,scheduler=2");
    // A take before the refusal is not lost: it is the same take, repeated.
    wire.ok("SET fencing.token = 'default=next,scheduler=after:2'");
    assert_holds_scoped(&mut wire, "default=10,scheduler=3");
    wire.ok("SET fencing.scope = 'other'");
    wire.ok("SET fencing.token = 'next'");
    assert_eq!(value(&mut wire, "SHOW fencing.token"), "1");
    let seen = value(&mut wire, "SHOW fencing.status");
    assert_eq!(seen, "token=1 scope=other mark=1 state=current");
}

#[track_caller]
fn assert_holds_scoped(wire: &mut Wire, token: &str) {
    assert_eq!(value(wire, "SHOW fencing.token"), token);
    let setting = "SELECT current_setting('fencing.token')";
    assert_eq!(value(wire, setting), token);
}

#[test]
fn said_again_it_is_another_take() {
    let stage = stage();
    let mut wire = stage.plain();
    wire.ok("SET fencing.token = 'after:0'");
    assert_refused(&wire.query("SET fencing.token = 'after:0'"), "PF001");
    assert_holds(&mut wire, "1");
    wire.ok("SET fencing.token = 'next'");
    assert_holds(&mut wire, "2");
    let named = Batch::new().parse("n", "SET fencing.token = 'next'").sync();
    wire.run(&named);
    for token in ["3", "4"] {
        wire.run(&Batch::new().bind("", "n", &[]).execute("", 0).sync());
        assert_holds(&mut wire, token);
    }
    // A transaction that has written does not continue under another token.
    wire.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    assert_refused(&wire.query("SET LOCAL fencing.token = 'next'"), "PF003");
    wire.ok("ROLLBACK");
    assert_eq!(value(&mut wire, "SHOW fencing.mark"), "4");
}

#[test]
fn in_transactions() {
    let stage = stage();
    let mut wire = stage.plain();
    wire.ok("BEGIN");
    wire.ok("SET LOCAL fencing.token = 'next'");
    assert_holds(&mut wire, "1");
    wire.ok("COMMIT");
    assert_eq!(value(&mut wire, "SHOW fencing.token"), "");
    wire.ok("SET fencing.token = 'next'");
    wire.ok("BEGIN");
    wire.ok("SET fencing.token = 'after:2'");
    wire.ok("SAVEPOINT a");
    wire.ok("SET LOCAL fencing.token = 'next'");
    let found = value(&mut wire, "SELECT current_setting('fencing.token')");
    assert_eq!(found, "4");
    wire.ok("ROLLBACK TO a");
    assert_eq!(value(&mut wire, "SHOW fencing.token"), "3");
    wire.ok("ROLLBACK");
    assert_eq!(value(&mut wire, "SHOW fencing.token"), "2");
    // It has fallen back below its taken token.
    assert_refused(&wire.query("INSERT INTO jobs VALUES (1)"), "PF001");
    wire.ok("SET fencing.token = 'after:4'");
    assert_holds(&mut wire, "5");
    // Alone it would end immediately, so it takes nothing.
    wire.query("SET LOCAL fencing.token = 'next'");
    assert_holds(&mut wire, "5");
    // A later failed statement undoes it, but the token stays taken.
    wire.ok("BEGIN");
    wire.ok("SET fencing.token = 'next'");
    wire.query("SELECT 1/0");
    wire.ok("ROLLBACK");
    assert_eq!(value(&mut wire, "SHOW fencing.token"), "5");
    assert_refused(&wire.query("INSERT INTO jobs VALUES (1)"), "PF001");
}

#[test]
fn in_a_pipeline() {
    let stage = stage();
    let mut wire = stage.plain();
    let insert = "INSERT INTO jobs VALUES (1) RETURNING token";
    let tokens = |answer: &[Message]| -> Vec<String> {
        let rows = answer.iter().filter(|message| message.tag == b'D');
        rows.map(|row| row.row().concat()).collect()
    };
    let answer = wire.say(&format!(
        "> SET fencing.token = 'after:0' + > {insert} + sync"
    ));
    assert_eq!(tokens(&answer), ["1"], "{}", pretty(&answer));
    let begun = format!("> BEGIN + > SET LOCAL fencing.token = 'next' + > {insert}");
    let answer = wire.say(&format!("{begun} + > COMMIT + > {insert} + sync"));
    // After the COMMIT the session has fallen back to the lower token.
    assert_eq!(tokens(&answer), ["2"], "{}", pretty(&answer));
    assert_refused(&answer, "PF001");
    // A take that its pipeline undoes.
    wire.ok("SET fencing.token = 'next'");
    wire.say("> SET fencing.token = 'next' + > SELECT 1/0 + sync");
    assert_eq!(value(&mut wire, "SHOW fencing.token"), "3");
    wire.ok("SET fencing.token = 'after:4'");
    assert_holds(&mut wire, "5");
}

#[test]
fn at_login_and_at_a_reset() {
    let stage = stage();
    for (token, (name, said)) in (1..).zip([
        ("fencing.token", "next"),
        ("options", "-c fencing.token=after:1"),
        ("options", "--fencing.token=next"),
        ("fencing.token", "default=after:3"),
    ]) {
        let token = token.to_string();
        let login = trusted(&[(name, said)]);
        let mut wire = Wire::login(&stage.proxy.endpoint(), &login);
        assert_holds(&mut wire, &token);
        for reset in ["RESET fencing.token", "RESET ALL", "DISCARD ALL"] {
            wire.ok("SET fencing.token = ''");
            wire.ok(reset);
            assert_holds(&mut wire, &token);
        }
        wire.ok("SELECT 1; RESET ALL");
        assert_holds(&mut wire, &token);
        let answer = wire.query("RESET ALL; INSERT INTO jobs VALUES (1)");
        assert_refused(&answer, "PF003");
        assert!(pretty(&answer).contains("brings back the fencing token"));
        for fails in ["SELECT 1/0", "ROLLBACK"] {
            // It is committed immediately, and later statements are undone.
            let batch = Batch::new().statement("DISCARD ALL").statement("SELECT 1");
            wire.run(&batch.statement(fails).sync());
            assert_holds(&mut wire, &token);
        }
        wire.ok("BEGIN");
        wire.ok("SET LOCAL fencing.token = ''");
        wire.ok("RESET fencing.token");
        assert_eq!(value(&mut wire, "SHOW fencing.token"), token);
        wire.ok("ROLLBACK");
        assert_holds(&mut wire, &token);
        assert_eq!(value(&mut wire, "SHOW fencing.mark"), token);
    }
    let mut late = Wire::open(&stage.proxy.endpoint(), &[("fencing.token", "after:3")]);
    assert_refused(&late.until_closed(), "PF001");
}

/// Later statements would run before PostgreSQL has the number; other values only look like a take.
#[test]
fn what_is_no_take_is_refused() {
    let stage = stage();
    let mut wire = stage.plain();
    for sql in [
        "SET fencing.token = 'next'; SELECT 1",
        "BEGIN; SET LOCAL fencing.token = 'next'",
        "SELECT set_config('fencing.token', 'next', false), set_config('fencing.scope', 'a', false)",
        "SET fencing.token = 'Next'",
        "SET fencing.token = 'next '; SET fencing.token = 3",
        "SET fencing.token = 'after:'",
        "SET fencing.token = 'after:-1'",
        "SET fencing.token = 'after:9223372036854775807'",
        "SELECT set_config('fencing.token', 'ne' || 'xt', false)",
        "DO $$ BEGIN PERFORM set_config('fencing.token', 'next', false); END $$",
    ] {
        let answer = wire.query(sql);
        let code = errors(&answer).concat();
        assert!(
            ["PF003", "PF002"].contains(&code.as_str()),
            "{sql}: {}",
            pretty(&answer)
        );
        wire.query("ROLLBACK");
    }
    assert_refused(&wire.query("INSERT INTO jobs VALUES (1)"), "PF002");
    assert_eq!(value(&mut wire, "SHOW fencing.mark"), "");
}

const POLICY: &str = "[tokens]\nmax_step = 5\nmax_token = 3\n\
    [scope.watched]\nmode = \"observe\"\n\
    [scope.jobs]\nholders = { user = \"lead*\" }\n\
    [[session]]\nmatch = { user = \"pooled\" }\ndeclare = \"transaction\"\n";

#[test]
fn a_policy_says_the_same_of_it() {
    let roles = "CREATE ROLE leader SUPERUSER LOGIN; CREATE ROLE pooled SUPERUSER LOGIN";
    let stage = Stage::governed(&format!("{SETUP}; {roles}"), &PolicyFile::new(POLICY));
    let mut wire = stage.plain();
    assert_refused(&wire.query("SET fencing.token = 'jobs=next'"), "PF005");
    stage.user("leader").ok("SET fencing.token = 'jobs=next'");
    let mut pooled = stage.user("pooled");
    assert_refused(&pooled.query("SET fencing.token = 'next'"), "PF005");
    pooled.ok("BEGIN");
    pooled.ok("SET LOCAL fencing.token = 'next'");
    assert_holds(&mut pooled, "1");
    pooled.ok("COMMIT");
    for token in ["2", "3"] {
        wire.ok("SET fencing.token = 'next'");
        assert_holds(&mut wire, token);
    }
    for sql in [
        "SET fencing.token = 'next'",
        "SET fencing.token = 'after:3'",
    ] {
        let refused = assert_refused(&wire.query(sql), "PF003");
        assert_says(&refused, "max_token of scope \"default\" is 3");
    }
    assert_holds(&mut wire, "3");
    // In observe mode it passes, and a refused session holds nothing.
    let mut watched = stage.plain();
    watched.ok("SET fencing.token = 'watched=next'");
    assert_eq!(value(&mut watched, "SHOW fencing.token"), "watched=1");
    let mut slept = stage.plain();
    slept.ok("SET fencing.token = 'watched=after:0'");
    assert_eq!(value(&mut slept, "SHOW fencing.token"), "");
    slept.ok("SET fencing.token = 'watched=1'");
    let records = stage.records(6);
    let last = records.last().unwrap();
    assert_eq!(last, &("stale_token".to_owned(), false), "{records:?}");
}
