//! A BEGIN that is held back, and the connection that its transaction gets.

use std::collections::BTreeSet;

use pgpalisade_test_servers::machine::{Signal, signal, wait_until};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Wire, tags};

use super::{backend, scarce, stage, with};

#[test]
fn a_begin_takes_no_connection() {
    let stage = scarce("500ms");
    let mut clients: Vec<Wire> = (0..3).map(|_| stage.plain()).collect();
    for client in &mut clients {
        assert_eq!(tags(&client.query("BEGIN READ ONLY")), "C ZT");
    }
    stage.plain().ok("SELECT 1");
    for client in &mut clients {
        assert_eq!(tags(&client.query("SELECT 1")), "T D C ZT");
        assert_eq!(tags(&client.query("SELECT 1/0")), "E ZE");
        assert_eq!(tags(&client.query("COMMIT")), "C ZI");
    }
    // A transaction that finds no connection has failed.
    let [one, other, ..] = &mut clients[..] else {
        unreachable!()
    };
    one.ok("BEGIN; SELECT 1");
    other.ok("BEGIN");
    assert_eq!(tags(&other.fails("SELECT 1", "53300")), "E ZE");
    one.ok("COMMIT");
    other.fails("SELECT 1", "25P02");
    assert_eq!(tags(&other.query("ROLLBACK")), "C ZI");
}

/// lib/pq begins all of its transactions so.
#[test]
fn a_begin_with_read_write_may_declare_or_read() {
    for stage in [Stage::with("CREATE TABLE jobs (id int)"), stage("2")] {
        let mut client = stage.plain();
        client.ok("BEGIN READ WRITE");
        client.ok("SELECT 1");
        client.fails("INSERT INTO jobs VALUES (1)", "PF002");
        client.ok("ROLLBACK");
        client.ok("BEGIN READ WRITE");
        client.ok("SET LOCAL fencing.token = 34");
        client.ok("INSERT INTO jobs VALUES (1)");
        client.ok("COMMIT");
        let mut leader = stage.leader("34");
        leader.ok("BEGIN ISOLATION LEVEL SERIALIZABLE, READ WRITE");
        leader.ok("INSERT INTO jobs VALUES (2)");
        leader.ok("COMMIT");
        assert_eq!(client.rows("SELECT count(*) FROM jobs"), [["2"]]);
    }
}

/// The client gets PostgreSQL's answers.
#[test]
fn what_follows_a_begin_is_answered_as_by_postgresql() {
    let stage = stage("3");
    for talk in [
        &["BEGIN", "BEGIN", "COMMIT"][..],
        &["begin work;", "ROLLBACK", "ROLLBACK"],
        &["BEGIN", "COMMIT AND CHAIN", "COMMIT"],
        &[
            "START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY",
            "SHOW transaction_isolation",
            "ABORT",
        ],
        &["BEGIN", "SELECT 1/0", "SELECT 1", "END"],
        &[
            "BEGIN",
            "SAVEPOINT a",
            "SELECT 1/0",
            "ROLLBACK TO a",
            "SELECT 1",
            "COMMIT",
        ],
        &["BEGIN NOT DEFERRABLE", "", "COMMIT"],
    ] {
        let (mut direct, mut pooled) = (stage.postgres.admin(), stage.plain());
        for text in talk {
            let (expect, found) = (direct.query(text), pooled.query(text));
            let bodies = |answer: &[_]| -> Vec<Vec<u8>> {
                let of = |message: &pgpalisade_test_servers::wire::Message| message.body.clone();
                answer.iter().map(of).collect()
            };
            assert_eq!(tags(&found), tags(&expect), "{talk:?}: {text}");
            assert_eq!(bodies(&found), bodies(&expect), "{talk:?}: {text}");
        }
    }
}

#[test]
fn a_transaction_that_declares_its_token_finds_its_connection() {
    let stage = stage("4");
    let mut web = stage.plain();
    let mut pids = BTreeSet::new();
    for id in 0..6 {
        let mut leader = stage.plain();
        leader.ok("BEGIN");
        leader.ok("SET LOCAL fencing.token = 34");
        pids.insert(backend(&mut leader));
        leader.ok(&format!("INSERT INTO jobs VALUES ({id})"));
        leader.ok("COMMIT");
        assert_eq!(leader.rows("SHOW fencing.token"), [[""]]);
        leader.fails("INSERT INTO jobs VALUES (100)", "PF002");
        let declared =
            format!("BEGIN; SET LOCAL fencing.token = 34; INSERT INTO jobs VALUES ({id} + 50)");
        leader.ok(&declared);
        pids.insert(backend(&mut leader));
        leader.ok("COMMIT");
        web.fails("INSERT INTO jobs VALUES (100)", "PF002");
    }
    assert_eq!(pids.len(), 1, "{pids:?}");
}

/// As one that PostgreSQL has begun.
#[test]
fn a_begin_is_waited_for_at_a_stop() {
    let stage = with(&[("--shutdown-grace", "1min")]);
    let (mut idle, mut begun) = (stage.plain(), stage.plain());
    begun.ok("BEGIN");
    signal(stage.proxy.pid(), Signal::TERM);
    assert_eq!(idle.until_closed()[0].sqlstate(), "57P01");
    begun.ok("SELECT 1");
    begun.ok("COMMIT");
    assert_eq!(begun.until_closed()[0].sqlstate(), "57P01");
    wait_until("its end", || stage.proxy.output().contains("\"stopped\""));
}

/// The client was told that it has begun.
#[test]
fn a_begin_of_a_deposed_leader_has_failed() {
    let stage = stage("4");
    let mut leader = stage.leader("34");
    leader.ok("INSERT INTO jobs VALUES (1)");
    leader.ok("BEGIN");
    stage.plain().ok("SET fencing.token = 35");
    let found = tags(&leader.fails("INSERT INTO jobs VALUES (2)", "PF001"));
    assert_eq!(found, "E ZE");
    leader.fails("INSERT INTO jobs VALUES (3)", "25P02");
    assert_eq!(tags(&leader.query("COMMIT")), "C ZI");
    leader.ok("BEGIN");
    assert_eq!(leader.rows("SELECT count(*) FROM jobs"), [["1"]]);
    leader.fails("INSERT INTO jobs VALUES (4)", "PF001");
    leader.ok("ROLLBACK");
}
