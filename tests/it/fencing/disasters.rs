//! G3: marks only rise, whatever is promoted, restored or lost; otherwise the refusal says what to do.

use std::path::Path;
use std::process::Output;

use pgpalisade_test_servers::machine::{PATIENCE, assert_says, wait_until};
use pgpalisade_test_servers::postgres::{Postgres, copy_tree};
use pgpalisade_test_servers::proxy::{Options, Proxy, Store};
use pgpalisade_test_servers::stage::{Stage, leader};
use pgpalisade_test_servers::wire::{TRUSTED, Wire, assert_error, pretty, trusted};

use super::{SETUP, assert_ended};

fn server() -> Postgres {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    postgres
}

/// Points a stopped proxy to another server.
fn point_to(proxy: &mut Proxy, postgres: &Postgres) {
    let Options {
        upstream, control, ..
    } = Options::new(postgres);
    let options = proxy.options_mut();
    options.upstream = upstream;
    options.control = control;
}

#[track_caller]
fn assert_refused(proxy: &Proxy, token: &str, sqlstate: &str) {
    let mut wire = Wire::connect(&proxy.endpoint());
    assert_error(&wire.start_as_leader(token), sqlstate);
}

/// Asserts that it does not start, and that the log and `check` tell all of these.
#[track_caller]
fn assert_does_not_start(proxy: &mut Proxy, parts: &[&str]) {
    let checked = proxy.subcommand("check").output().unwrap();
    assert_output(&checked, 1, parts);
    let said = proxy.try_restart(PATIENCE).unwrap_err();
    for part in parts {
        assert!(said.contains(part), "{part:?} is missing in: {said}");
    }
}

fn recover(proxy: &Proxy, flags: &[&str]) -> Output {
    let mut command = proxy.subcommand("recover");
    command.args(flags).output().unwrap()
}

#[track_caller]
fn assert_output(output: &Output, code: i32, parts: &[&str]) {
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(output.status.code(), Some(code), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// A replica that has not seen the last takeover is promoted. The mark is in the authority, not in the replica.
#[test]
fn a_lagging_replica_is_promoted() {
    let primary = server();
    let replica = primary.replica();
    let mut proxy = Proxy::start(&primary);
    leader(&proxy.endpoint(), "33").ok("INSERT INTO jobs VALUES (1)");
    replica.wait_for_replay(&primary);
    replica.stop_following();
    leader(&proxy.endpoint(), "34").ok("INSERT INTO jobs VALUES (2)");
    proxy.terminate();
    drop(primary);
    replica.promote();
    let witnessed = "SELECT token FROM pgpalisade.mark WHERE scope = 'default'";
    assert_eq!(replica.value(witnessed), "33", "the replica lags");
    point_to(&mut proxy, &replica);
    proxy.restart();
    assert_eq!(replica.value(witnessed), "34", "the witness is brought up");
    assert_refused(&proxy, "33", "PF001");
    leader(&proxy.endpoint(), "34").ok("INSERT INTO jobs VALUES (3)");
    leader(&proxy.endpoint(), "35").ok("INSERT INTO jobs VALUES (4)");
    let found = replica.sql("SELECT id FROM jobs ORDER BY id").concat();
    assert_eq!(found, ["1", "3", "4"]);
}

/// The old primary lives on with its own proxy and leader. It accepts no fenced write any more, though its leader has
/// the highest token.
#[test]
fn a_deposed_primary_is_fenced() {
    let marks = Postgres::start();
    let primary = server();
    let replica = primary.replica();
    let store = Store::Url(format!("postgres:{}", marks.admin_dsn()));
    let at = |postgres: &Postgres| Options {
        store: store.clone(),
        ..Options::new(postgres)
    };
    let mut old_proxy = Proxy::start_with(at(&primary));
    let mut old = leader(&old_proxy.endpoint(), "34");
    old.ok("INSERT INTO jobs VALUES (1)");
    let mut open = leader(&old_proxy.endpoint(), "34");
    open.ok("BEGIN; INSERT INTO jobs VALUES (2)");
    replica.wait_for_replay(&primary);
    replica.promote();
    let new_proxy = Proxy::start_with(at(&replica));
    leader(&new_proxy.endpoint(), "34").ok("INSERT INTO jobs VALUES (3)");

    // The watch notifies the old proxy, which ends its sessions though their token is the mark.
    for wire in [&mut old, &mut open] {
        let said = wire.until_closed();
        assert_eq!(said[0].sqlstate(), "PF007", "{}", pretty(&said));
    }
    let mut declares = Wire::login(&old_proxy.endpoint(), &TRUSTED);
    let answer = declares.query("SET fencing.token = 35");
    assert!(
        ["PF006", "PF007"].contains(&answer[0].sqlstate().as_str()),
        "{}",
        pretty(&answer)
    );
    let mark = "SELECT max(token) FROM pgpalisade_authority.marks WHERE scope = 'default'";
    let found = marks.value(mark);
    assert_eq!(found, "34", "a refused declaration raises nothing");

    old_proxy.terminate();
    assert_does_not_start(
        &mut old_proxy,
        &[
            "timeline 1",
            "timeline 2",
            "deposed by a failover",
            "recover",
        ],
    );
    leader(&new_proxy.endpoint(), "35").ok("INSERT INTO jobs VALUES (5)");
}

/// Raises the mark to 34, then restores the authority to a copy from before, changed by `spoil`.
fn forgetful(spoil: impl Fn(&Path, &Path)) -> Stage {
    let mut stage = Stage::with(SETUP);
    stage.leader("33").ok("INSERT INTO jobs VALUES (1)");
    stage.proxy.terminate();
    let store = stage.proxy.store();
    let snapshot = store.with_extension("snapshot");
    copy_tree(&store, &snapshot);
    stage.proxy.restart();
    stage.leader("34").ok("INSERT INTO jobs VALUES (2)");
    stage.proxy.terminate();
    spoil(&store, &snapshot);
    stage
}

#[test]
fn an_authority_restored_from_an_older_snapshot() {
    let mut stage = forgetful(|store, snapshot| copy_tree(snapshot, store));
    let parts = [
        "scope default is at 33",
        "but 34 was accepted before",
        "pgpalisade recover",
    ];
    assert_does_not_start(&mut stage.proxy, &parts);

    let mut bystander = stage.postgres.admin();
    let looked = recover(&stage.proxy, &[]);
    assert_output(&looked, 1, &["default: 33 -> 34", "nothing was changed"]);
    assert_does_not_start(&mut stage.proxy, &parts);
    bystander.ok("SELECT 1");

    let done = recover(&stage.proxy, &["--end-all-sessions"]);
    assert_output(&done, 0, &["Done."]);
    let looked = recover(&stage.proxy, &[]);
    assert_output(&looked, 0, &["Nothing to reconcile"]);
    let words = bystander.until_closed();
    assert_eq!(
        words[0].sqlstate(),
        "57P01",
        "a session nobody knows could write"
    );
    stage.proxy.restart();
    assert_refused(&stage.proxy, "33", "PF001");
    stage.leader("34").ok("INSERT INTO jobs VALUES (3)");
}

/// All scopes are restored from the cluster, even one that the authority has never heard of.
#[test]
fn an_authority_that_is_lost() {
    let mut stage = forgetful(|store, _| std::fs::remove_dir_all(store).unwrap());
    // Or somewhere else: what only looks must not put an empty one there.
    let mut repair = stage.proxy.subcommand("scope repair");
    repair.args(["--scope", "default", "--mark", "34", "--reason", "none"]);
    for looked in [recover(&stage.proxy, &[]), repair.output().unwrap()] {
        assert_output(&looked, 1, &["there is no store at", "none was created"]);
        assert!(!stage.proxy.store().exists());
    }
    assert_does_not_start(
        &mut stage.proxy,
        &[
            "scope default has no mark there",
            "but 34 was accepted before",
        ],
    );
    let done = recover(&stage.proxy, &["--end-all-sessions"]);
    assert_output(&done, 0, &["default: none -> 34"]);
    stage.proxy.restart();
    assert_refused(&stage.proxy, "33", "PF001");
    stage.leader("34").ok("INSERT INTO jobs VALUES (3)");
}

/// A scope is deleted from the store by hand and restored. Running proxies remember its mark, and a starting one
/// finds it in the cluster.
#[test]
fn a_scope_that_comes_back() {
    let marks = Postgres::start();
    let postgres = server();
    let mut options = Options::new(&postgres).store(format!("postgres:{}", marks.admin_dsn()));
    // The witness's database lacks a letter of the leader's name.
    postgres.sql(
        "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'",
    );
    options.control = options.control.replace("dbname=postgres", "dbname=latin");
    let mut proxy = Proxy::start_with(options);
    let named = trusted(&[("application_name", "план"), ("fencing.token", "34")]);
    Wire::login(&proxy.endpoint(), &named).ok("INSERT INTO jobs VALUES (1)");
    marks.sql("DELETE FROM pgpalisade_authority.marks WHERE scope = 'default'");
    assert_refused(&proxy, "33", "PF001");
    proxy.terminate();
    assert_does_not_start(&mut proxy, &["scope default has no mark there"]);
    let done = recover(&proxy, &["--end-all-sessions"]);
    assert_output(&done, 0, &["default: none -> 34"]);
    proxy.restart();
    assert_refused(&proxy, "33", "PF001");
}

/// Marks inside the protected cluster itself: recovering ends the authority's own sessions too.
#[test]
fn the_authority_is_in_the_cluster_that_it_protects() {
    let postgres = server();
    let options = Options::new(&postgres).store(format!("postgres:{}", postgres.admin_dsn()));
    let mut proxy = Proxy::start_with(options);
    let mut old = leader(&proxy.endpoint(), "33");
    old.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    leader(&proxy.endpoint(), "34").ok("INSERT INTO jobs VALUES (2)");
    assert_ended(&old.query("COMMIT"));
    proxy.terminate();
    postgres.sql("UPDATE pgpalisade_authority.marks SET token = 32 WHERE scope = 'default'");
    assert_does_not_start(&mut proxy, &["scope default is at 32"]);
    let done = recover(&proxy, &["--end-all-sessions"]);
    assert_output(&done, 0, &["default: 32 -> 34"]);
    proxy.restart();
    assert_refused(&proxy, "33", "PF001");
}

/// No recovery while a proxy serves: its sessions would be registered where nobody looks.
#[test]
fn no_recovery_beside_a_proxy() {
    let marks = Postgres::start();
    let postgres = server();
    let proxy =
        Proxy::start_with(Options::new(&postgres).store(format!("postgres:{}", marks.admin_dsn())));
    let mut session = leader(&proxy.endpoint(), "34");
    let refused = recover(&proxy, &["--end-all-sessions"]);
    assert_output(&refused, 1, &["already served", "pgpalisade control"]);
    session.ok("INSERT INTO jobs VALUES (1)");
}

/// A control role that may not create the table: the proxy serves and logs what is missing.
#[test]
fn a_control_role_without_the_right_to_keep_a_witness() {
    let postgres = server();
    postgres.sql("CREATE ROLE control LOGIN");
    postgres.sql("GRANT pg_signal_backend, pg_read_all_stats TO control");
    postgres.sql("CREATE ROLE app LOGIN; GRANT ALL ON jobs TO app");
    let mut options = Options::new(&postgres);
    options.control = options.control.replace("user=postgres", "user=control");
    let mut proxy = Proxy::start_with(options);
    let write = |proxy: &Proxy, token: &str| {
        let session = [
            ("user", "app"),
            ("database", "postgres"),
            ("fencing.token", token),
        ];
        let sql = format!("INSERT INTO jobs VALUES ({token})");
        Wire::login(&proxy.endpoint(), &session).ok(&sql)
    };
    write(&proxy, "34");
    assert!(
        proxy.output().contains("keeps no witness"),
        "{}",
        proxy.output()
    );
    assert_eq!(
        postgres.value("SELECT to_regclass('pgpalisade.mark') IS NULL"),
        "t"
    );
    proxy.terminate();
    // The command from the log.
    let make = "CREATE SCHEMA IF NOT EXISTS pgpalisade; CREATE TABLE IF NOT EXISTS pgpalisade.mark \
        (scope text PRIMARY KEY, token int8 NOT NULL, raised_at int8 NOT NULL, raised_by text NOT NULL, \
        incarnation int8 NOT NULL DEFAULT 0);";
    assert!(proxy.output().contains(make), "{}", proxy.output());
    postgres.sql(&format!(
        "{make} GRANT USAGE ON SCHEMA pgpalisade TO control; \
         GRANT SELECT, INSERT, UPDATE ON pgpalisade.mark TO control"
    ));
    proxy.restart();
    assert_eq!(
        postgres.value("SELECT token FROM pgpalisade.mark WHERE scope = 'default'"),
        "34"
    );
    write(&proxy, "35");
    assert_eq!(
        postgres.value("SELECT token FROM pgpalisade.mark WHERE scope = 'default'"),
        "35"
    );
    // Nor may it end the session of a superuser.
    let superuser = leader(&proxy.endpoint(), "36");
    let app = [("user", "app"), ("database", "postgres")];
    let refused = pretty(&Wire::login(&proxy.endpoint(), &app).query("SET fencing.token = 37"));
    let named = format!(
        "server process {} (user postgres, idle",
        superuser.backend_pid()
    );
    assert_says(&refused, "PF006");
    assert_says(&refused, &named);
    proxy.terminate();
    let _dba = postgres.admin();
    let refused = recover(&proxy, &["--end-all-sessions"]);
    assert_output(&refused, 1, &["the session of a superuser", "run it again"]);
}

/// Nor is it admitted when it is declared again: an authority that is restored would not be found out.
#[test]
fn a_mark_that_cannot_be_copied_admits_nobody() {
    let stage = Stage::with_flags(SETUP, &[("--takeover-timeout", "1s")]);
    stage.leader("33");
    let mut next = stage.plain();
    next.ok("SELECT 1");
    let mut admin = stage.postgres.admin();
    admin.ok("BEGIN; LOCK TABLE pgpalisade.mark IN SHARE MODE");
    for _ in 0..2 {
        assert_error(&next.query("SET fencing.token = 34"), "PF006");
        assert_error(&next.query("INSERT INTO jobs VALUES (1)"), "PF002");
    }
    admin.ok("COMMIT");
    assert_admitted_once_copied(&stage, &mut next);
}

/// Asserts that token 34 is admitted soon, and that the witness has it by then.
#[track_caller]
fn assert_admitted_once_copied(stage: &Stage, next: &mut Wire) {
    wait_until("the witness", || {
        let answer = next.query("SET fencing.token = 34");
        answer.iter().all(|message| message.tag != b'E')
    });
    let kept = "SELECT token FROM pgpalisade.mark WHERE scope = 'default'";
    assert_eq!(stage.postgres.value(kept), "34");
}

/// As a superuser may, at any time.
#[test]
fn a_dropped_witness_is_made_again() {
    let stage = Stage::with(SETUP);
    stage.leader("33");
    stage.sql("DROP SCHEMA pgpalisade CASCADE");
    let mut next = stage.plain();
    assert_error(&next.query("SET fencing.token = 34"), "PF006");
    assert_admitted_once_copied(&stage, &mut next);
}
