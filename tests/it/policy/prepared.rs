//! Prepared transactions: refused by default, and their handling by a takeover.

use pgpalisade_test_servers::machine::assert_says;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Wire, assert_error, pretty};

use super::{SETUP, assert_refused};

const ALLOWED: &str = "[defaults]\nallow = [\"prepare-transaction\"]\n";

fn stage(takeover: &str) -> Stage {
    let policy = format!("{ALLOWED}[tokens]\nprepared_transactions = \"{takeover}\"\n");
    Stage::governed(SETUP, &PolicyFile::new(&policy))
}

fn prepare(stage: &Stage) {
    let mut old = stage.leader("33");
    old.ok("BEGIN; INSERT INTO notes VALUES (1)");
    old.ok("PREPARE TRANSACTION 'it''s left'");
}

#[test]
fn a_takeover_refuses_while_older_ones_are_left() {
    let stage = stage("refuse");
    prepare(&stage);
    let mut new = stage.plain();
    for _ in 0..2 {
        let answer = new.query("SET fencing.token = 34");
        let told = pretty(&answer);
        assert!(told.contains("PF006") && told.contains("s left"), "{told}");
    }
    assert_refused(&mut new, "INSERT INTO notes VALUES (2)", "PF002");
    stage.sql("ROLLBACK PREPARED 'it''s left'");
    new.ok("SET fencing.token = 34");
    // Its own prepared transactions do not block its other sessions.
    new.ok("BEGIN; INSERT INTO notes VALUES (3)");
    new.ok("PREPARE TRANSACTION 'own'");
    let mut other = stage.leader("34");
    other.ok("COMMIT PREPARED 'own'");
    assert_eq!(
        stage.value("SELECT string_agg(id::text, ',') FROM notes"),
        "3"
    );
}

#[test]
fn a_takeover_rolls_older_ones_back() {
    let stage = stage("roll-back");
    prepare(&stage);
    let mut new = stage.leader("34");
    assert_eq!(stage.value("SELECT count(*) FROM pg_prepared_xacts"), "0");
    new.ok("BEGIN; INSERT INTO notes VALUES (3)");
    new.ok("PREPARE TRANSACTION 'own'");
    let mut other = stage.leader("34");
    other.ok("COMMIT PREPARED 'own'");
    assert_eq!(
        stage.value("SELECT string_agg(id::text, ',') FROM notes"),
        "3"
    );
}

/// The server may read the text otherwise, but not its first words.
#[test]
fn one_whose_name_is_in_doubt_is_refused() {
    let stage = Stage::governed(SETUP, &PolicyFile::new(""));
    let mut leader = stage.leader("33");
    leader.ok("SET client_encoding = LATIN1");
    leader.ok("BEGIN; INSERT INTO notes VALUES (1)");
    leader.send(&Batch::new().message(b'Q', b"PREPARE TRANSACTION '\xe9'\0"));
    assert_error(&leader.until_ready(), "PF005");
    assert_eq!(stage.value("SELECT count(*) FROM pg_prepared_xacts"), "0");
}

/// What a policy refuses, and another scope's table, stay so under a name that is not compared, or beside a write that
/// may be any.
#[test]
fn what_is_not_known_opens_nothing() {
    for (refuse, tokens, sql, sqlstate) in [
        (
            "refuse = [\"truncate\", \"unparsed\"]",
            "default=33,jobs=33",
            "TRUNCATE jobs.queue",
            "PF005",
        ),
        ("", "33", "INSERT INTO jobs.queue VALUES (1)", "PF002"),
    ] {
        let policy = format!(
            "[defaults]\nunknown_tables = \"session-scope\"\n{refuse}\n\
             [scope.jobs]\ntables = [\"jobs.*\"]\n"
        );
        let stage = Stage::governed(SETUP, &PolicyFile::new(&policy));
        let mut leader = stage.leader(tokens);
        let named = Batch::new().parse("\u{e9}", sql).bind("", "\u{e9}", &[]);
        leader.send(&named.execute("", 0).sync());
        assert_error(&leader.until_ready(), sqlstate);
        if tokens == "33" {
            leader.fails(
                "INSERT INTO jobs.queue SELECT lo_unlink(id) FROM notes",
                "PF002",
            );
        }
    }
}

/// A prepared transaction that the control connection cannot roll back blocks the takeover.
#[test]
fn one_in_another_database_is_named() {
    let stage = stage("roll-back");
    stage.sql("CREATE DATABASE elsewhere");
    let parameters = [("user", "postgres"), ("database", "elsewhere")];
    let mut direct = Wire::login(&stage.postgres.socket(), &parameters);
    direct.ok("BEGIN; CREATE TABLE t ()");
    direct.ok("PREPARE TRANSACTION 'far'");
    let mut new = stage.plain();
    let answer = new.query("SET fencing.token = 34");
    let told = pretty(&answer);
    assert_says(&told, "PF006");
    assert_says(&told, "another database");
    direct.ok("ROLLBACK PREPARED 'far'");
    new.ok("SET fencing.token = 34");
}
