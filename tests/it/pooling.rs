//! `pool = "transaction"`: few server connections serve many clients, and a token belongs to the transactions of its
//! client.

use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Wire};

const JOBS: &str = "CREATE TABLE jobs (id int PRIMARY KEY)";

/// A proxy that shares `max` server connections, one of them for leaders.
fn stage(max: &str) -> Stage {
    Stage::with_flags(
        JOBS,
        &[
            ("--pool", "transaction"),
            ("--backends-max", max),
            ("--backends-leaders", "1"),
        ],
    )
}

fn backend(wire: &mut Wire) -> String {
    wire.rows("SELECT pg_backend_pid()").concat().concat()
}

/// Server connections of clients.
fn connections(stage: &Stage) -> usize {
    let all = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND \
               application_name NOT LIKE 'pgpalisade%' AND pid <> pg_backend_pid()";
    stage.postgres.value(all).parse().unwrap()
}

#[test]
fn many_clients_share_few_connections() {
    let stage = stage("3");
    let mut clients: Vec<Wire> = (0..20).map(|_| stage.plain()).collect();
    for round in 0..3 {
        for client in &mut clients {
            assert_eq!(client.rows("SELECT 1"), [["1"]], "{round}");
            client.ok("BEGIN; SELECT 2; COMMIT");
        }
    }
    assert!(connections(&stage) <= 3);
    // Without a token nobody writes.
    clients[0].fails("INSERT INTO jobs VALUES (1)", "PF002");
}

#[test]
fn a_transaction_keeps_its_connection() {
    let stage = stage("3");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    one.ok("BEGIN");
    let pid = backend(&mut one);
    assert_ne!(backend(&mut other), pid);
    assert_eq!(backend(&mut one), pid);
    one.ok("COMMIT");
}

#[test]
fn a_leader_writes_and_web_transactions_go_on_through_a_takeover() {
    let stage = stage("4");
    let mut web = stage.plain();
    let mut leader = stage.leader("34");
    leader.ok("INSERT INTO jobs VALUES (1)");
    leader.ok("BEGIN; INSERT INTO jobs VALUES (2); COMMIT");
    assert_eq!(web.rows("SELECT count(*) FROM jobs"), [["2"]]);
    web.fails("INSERT INTO jobs VALUES (3)", "PF002");
    let mut next = stage.plain();
    next.ok("SET fencing.token = 35");
    next.ok("INSERT INTO jobs VALUES (4)");
    assert_eq!(web.rows("SELECT count(*) FROM jobs"), [["3"]]);
    // The deposed leader is told once, and stays connected.
    leader.fails("SELECT 1", "PF001");
    assert_eq!(leader.rows("SELECT 1"), [["1"]]);
    leader.fails("INSERT INTO jobs VALUES (5)", "PF001");
    leader.fails("BEGIN; INSERT INTO jobs VALUES (5); COMMIT", "PF001");
    next.ok("INSERT INTO jobs VALUES (6)");
    assert_eq!(web.rows("SELECT count(*) FROM jobs"), [["4"]]);
}

#[test]
fn the_token_of_one_client_is_not_that_of_another() {
    let stage = stage("2");
    let mut leader = stage.leader("34");
    let mut others: Vec<Wire> = (0..4).map(|_| stage.plain()).collect();
    for id in 0..20 {
        leader.ok(&format!("INSERT INTO jobs VALUES ({id})"));
        for other in &mut others {
            other.fails("INSERT INTO jobs VALUES (100)", "PF002");
            assert_eq!(other.rows("SHOW fencing.token"), [[""]]);
        }
        assert_eq!(leader.rows("SHOW fencing.token"), [["34"]]);
    }
}

/// What a client has left, also by a function, is gone for the next.
#[test]
fn nothing_of_a_client_is_left_for_the_next() {
    let stage = stage("2");
    stage.postgres.sql(
        "CREATE FUNCTION leaves() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             PERFORM set_config('work_mem', '123kB', false);
             PERFORM set_config('role', 'pg_monitor', false);
             PERFORM pg_advisory_lock(7);
             LISTEN channel;
         END $$",
    );
    let (mut one, mut other) = (stage.plain(), stage.plain());
    let default = other.rows("SHOW work_mem");
    for _ in 0..6 {
        one.ok("SELECT leaves()");
        assert_eq!(other.rows("SHOW work_mem"), default);
        assert_eq!(other.rows("SELECT current_user"), [["postgres"]]);
        assert_eq!(other.rows("SELECT pg_listening_channels()"), [[""; 1]; 0]);
        let locks =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
        assert_eq!(other.rows(locks), [["0"]]);
    }
}

/// What a client has left by a text stays, and the client keeps its connection for it.
#[test]
fn a_client_keeps_what_it_has_left() {
    let stage = stage("3");
    let (mut one, mut other) = (stage.plain(), stage.plain());
    one.ok("SET work_mem = '123kB'");
    let pid = backend(&mut one);
    for _ in 0..4 {
        assert_ne!(backend(&mut other), pid);
        assert_eq!(one.rows("SHOW work_mem"), [["123kB"]]);
        assert_eq!(backend(&mut one), pid);
    }
    one.ok("DISCARD ALL");
    assert_ne!(one.rows("SHOW work_mem"), [["123kB"]]);
}

#[test]
fn who_finds_no_connection_in_time_is_told() {
    let postgres = Postgres::start();
    let options = Options::new(&postgres)
        .flag("--pool", "transaction")
        .flag("--backends-max", "1")
        .flag("--backends-leaders", "0")
        .flag("--backends-wait", "300ms");
    let proxy = Proxy::start_with(options);
    let stage = Stage { proxy, postgres };
    let (mut one, mut other) = (stage.plain(), stage.plain());
    one.ok("BEGIN");
    other.send(&Batch::new().query("SELECT 1"));
    let answer = other.until_closed();
    assert_eq!(answer[0].sqlstate(), "53300");
    one.ok("COMMIT");
}
