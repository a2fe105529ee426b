//! Poolers in front of the proxy: the set-ups that docs/drivers.md calls safe, and what happens with the others.
//!
//! `make proof ARGS='--pooler session'` and so on judges those that are safe under faults.

use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::{assert_says, wait_until};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::pooler::Pooler;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, PROTOCOL_3_0, Wire, errors, pretty};

/// pgpool-II keeps no connections to the database `postgres`.
const DATABASE: &str = "shop";

/// `server_reset_query` is left at `DISCARD ALL`. All clients share one server connection.
const SESSION: &str = "pool_mode = session\ndefault_pool_size = 1";
const TRANSACTION: &str = "pool_mode = transaction\ndefault_pool_size = 1";

const RULE: &str = "[[session]]\nmatch = { user = \"postgres\" }\ndeclare = \"transaction\"\n";

fn stage(policy: &str) -> Stage {
    let stage = Stage::governed(
        &format!("CREATE DATABASE {DATABASE}"),
        &PolicyFile::new(policy),
    );
    direct(&stage).ok("CREATE TABLE jobs (token int)");
    stage
}

/// Past proxy and pooler.
fn direct(stage: &Stage) -> Wire {
    Wire::login(
        &stage.postgres.tcp(),
        &[("user", "postgres"), ("database", DATABASE)],
    )
}

fn written(stage: &Stage) -> Vec<String> {
    direct(stage)
        .rows("SELECT token FROM jobs ORDER BY 1")
        .concat()
}

fn started(pooler: &Pooler, more: &[(&str, &str)]) -> Wire {
    let mut wire = Wire::connect(&pooler.endpoint());
    let parameters = [&[("user", "postgres"), ("database", DATABASE)], more].concat();
    wire.startup(PROTOCOL_3_0, &parameters);
    wire
}

fn client(pooler: &Pooler) -> Wire {
    let mut wire = started(pooler, &[]);
    wire.until_ready();
    wire
}

/// In order: pgpool-II does not keep the connection of a client that vanishes.
fn leave(mut client: Wire) {
    client.send(&Batch::new().terminate());
    client.until_closed();
}

/// As a new leader does, past the pooler.
fn take_over(stage: &Stage, token: u32) {
    let mut next = Wire::login(
        &stage.proxy.endpoint(),
        &[("user", "postgres"), ("database", DATABASE)],
    );
    next.ok(&format!("BEGIN; SET LOCAL fencing.token = {token}; COMMIT"));
}

#[test]
fn pgbouncer_knows_no_token_in_a_startup_packet() {
    let stage = stage("");
    let ways = [("options", "-c fencing.token=34"), ("fencing.token", "34")];
    for mode in [SESSION, TRANSACTION] {
        let pooler = Pooler::before(&stage.proxy.endpoint(), mode);
        for way in ways {
            let found = errors(&started(&pooler, &[way]).until_closed());
            assert_eq!(found, ["08P01"], "{way:?}");
        }
        // Told to ignore it, it loses it.
        let ignoring = format!("{mode}\nignore_startup_parameters = options, fencing.token");
        let pooler = Pooler::before(&stage.proxy.endpoint(), &ignoring);
        for way in ways {
            let mut leader = started(&pooler, &[way]);
            leader.until_ready();
            leader.ok("SHOW fencing.status");
            assert_eq!(leader.rows("SHOW fencing.token"), [[""]]);
            leader.fails("INSERT INTO jobs VALUES (34)", "PF002");
        }
    }
}

/// A session of `pooler` declares, and the next one has what it left.
fn after_another(stage: &Stage, pooler: &Pooler) -> Wire {
    let mut leader = client(pooler);
    leader.ok("SET fencing.token = 34");
    leader.ok("INSERT INTO jobs VALUES (34)");
    leave(leader);
    assert_eq!(written(stage), ["34"]);
    client(pooler)
}

#[test]
fn a_pooler_of_sessions_resets_them() {
    let stage = stage("");
    for pooler in [
        Pooler::before(&stage.proxy.endpoint(), SESSION),
        Pooler::pgpool(&stage.proxy.endpoint(), 1, ""),
    ] {
        let mut next = after_another(&stage, &pooler);
        assert_eq!(next.rows("SHOW fencing.token"), [[""]]);
        next.fails("INSERT INTO jobs VALUES (0)", "PF002");
        direct(&stage).ok("TRUNCATE jobs");
    }
}

/// The next client writes under the token of the one before.
#[test]
fn without_a_reset_the_token_stays() {
    let stage = stage("");
    for pooler in [
        Pooler::before(
            &stage.proxy.endpoint(),
            &format!("{SESSION}\nserver_reset_query ="),
        ),
        Pooler::pgpool(&stage.proxy.endpoint(), 1, "reset_query_list = 'ABORT'"),
    ] {
        after_another(&stage, &pooler).ok("INSERT INTO jobs VALUES (0)");
        assert_eq!(written(&stage), ["0", "34"]);
        direct(&stage).ok("TRUNCATE jobs");
    }
}

#[test]
fn pgpool_keeps_the_token_of_a_startup_packet() {
    let stage = stage("");
    let pooler = Pooler::pgpool(&stage.proxy.endpoint(), 1, "");
    let options = [("options", "-c fencing.token=34")];
    // A new connection, and the kept one.
    for _ in 0..2 {
        let mut leader = started(&pooler, &options);
        leader.until_ready();
        leader.ok("INSERT INTO jobs VALUES (34)");
        leave(leader);
    }
    client(&pooler).fails("INSERT INTO jobs VALUES (0)", "PF002");
    take_over(&stage, 35);
    wait_until("a refusal", || {
        errors(&started(&pooler, &options).until_closed()).contains(&"PF001".to_owned())
    });
    client(&pooler).ok("SELECT 1");
    assert_eq!(written(&stage), ["34", "34"]);
}

/// Two leaders share a server connection. The deposed one writes under the other's token.
#[test]
fn a_stale_write_commits_if_set_is_for_a_session() {
    for mode in [TRANSACTION, "pool_mode = statement\ndefault_pool_size = 1"] {
        let stage = stage("");
        let pooler = Pooler::before(&stage.proxy.endpoint(), mode);
        let (mut old, mut new) = (client(&pooler), client(&pooler));
        old.ok("SET fencing.token = 33");
        new.ok("SET fencing.token = 34");
        old.ok("INSERT INTO jobs VALUES (33)");
        // So does one that declared nothing.
        client(&pooler).ok("INSERT INTO jobs VALUES (0)");
        assert_eq!(written(&stage), ["0", "33"]);
    }
}

#[test]
fn with_a_rule_each_transaction_declares() {
    let stage = stage(RULE);
    let pooler = Pooler::before(&stage.proxy.endpoint(), TRANSACTION);
    let (mut old, mut new) = (client(&pooler), client(&pooler));
    old.fails("SET fencing.token = 33", "PF005");
    let write = |token: u32| {
        format!(
            "BEGIN; SET LOCAL fencing.token = {token}; INSERT INTO jobs VALUES ({token}); COMMIT"
        )
    };
    old.ok(&write(33));
    new.ok(&write(34));
    old.fails(&write(33), "PF001");
    old.ok("ROLLBACK");
    for wire in [&mut old, &mut new] {
        wire.fails("INSERT INTO jobs VALUES (0)", "PF002");
    }
    assert_eq!(written(&stage), ["33", "34"]);
}

/// The first in a server connection is one step of the authority, the others none.
#[test]
fn a_repeated_set_local_is_no_step_of_the_authority() {
    let postgres = Postgres::start();
    postgres.sql("CREATE TABLE jobs (token int)");
    let (http, proxy) = Http::with_proxy(&postgres);
    let pooler = Pooler::before(&proxy.endpoint(), TRANSACTION);
    let steps = || {
        let metrics = http.metrics();
        ["declare", "mark", "lease"].map(|operation| {
            metrics.of(&format!(
                "pgpalisade_authority_answer_seconds_count{{operation=\"{operation}\"}}"
            ))
        })
    };
    let before = steps();
    for _ in 0..20 {
        let mut wire = Wire::open(&pooler.endpoint(), &[]);
        wire.until_ready();
        wire.ok("BEGIN; SET LOCAL fencing.token = 34; INSERT INTO jobs VALUES (34); COMMIT");
    }
    let after = steps();
    assert_eq!(after[0] - before[0], 1.0, "{before:?} {after:?}");
    assert_eq!(after[1..], before[1..]);
    assert_eq!(postgres.value("SELECT count(*) FROM jobs"), "20");
}

/// What a takeover costs others: it ends each connection that has had a lower token, whoever has it now.
#[test]
fn a_takeover_ends_a_connection_that_another_client_has() {
    let stage = stage(RULE);
    let pooler = Pooler::before(&stage.proxy.endpoint(), TRANSACTION);
    let mut leader = client(&pooler);
    leader.ok("BEGIN; SET LOCAL fencing.token = 33; COMMIT");
    let mut reader = client(&pooler);
    reader.ok("BEGIN; SELECT 1");
    take_over(&stage, 34);
    let answer = reader.query("SELECT 1");
    // PgBouncer adds its own: "server conn crashed?"
    assert_eq!(answer[0].sqlstate(), "PF001", "{}", pretty(&answer));
    assert_says(&pretty(&answer), "fencing token 33 is stale");
    // The leader itself had no connection, and goes on with another.
    leader.ok("SELECT 1");
}
