//! A scope is poisoned by a token that no election will ever reach, and an operator repairs it.

use std::process::Output;

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::machine::{
    Signal, assert_says, free_port, pause, signal, wait_for, wait_until,
};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy, Store};
use pgpalisade_test_servers::stage::leader;
use pgpalisade_test_servers::wire::{
    Batch, Endpoint, TRUSTED, Wire, assert_error, errors, pretty, tags,
};
use serde_json::Value;

const POISON: &str = "9223372036854775807";

fn server() -> Postgres {
    let postgres = Postgres::start();
    postgres.sql("CREATE TABLE jobs (id int PRIMARY KEY)");
    postgres
}

/// Refusal of a session with `token`, or `None` if it is admitted.
fn refusal(endpoint: &Endpoint, token: &str) -> Option<(String, String)> {
    let mut wire = Wire::connect(endpoint);
    let answer = wire.start_as_leader(token);
    let error = errors(&answer).into_iter().next()?;
    Some((error, pretty(&answer)))
}

#[track_caller]
fn assert_refused(endpoint: &Endpoint, token: &str, sqlstate: &str) {
    let (code, text) = refusal(endpoint, token).unwrap();
    assert_eq!(code, sqlstate, "{text}");
}

fn repair(proxy: &Proxy, mark: &str, flags: &[&str]) -> Output {
    let mut command = proxy.subcommand("scope repair");
    command.args(["--scope", "default", "--mark", mark]);
    command.args(["--reason", "a script said 2^63-1"]);
    command.args(flags).output().unwrap()
}

/// Asserts success, and returns its one line of JSON.
#[track_caller]
fn repaired(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    record(output)
}

#[track_caller]
fn record(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{output:?}");
    serde_json::from_str(&text).unwrap()
}

#[track_caller]
fn assert_failed(output: &Output, parts: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is missing in: {said}");
    }
}

fn status(proxy: &Proxy) -> (Value, String) {
    let run = |flags: &[&str]| proxy.subcommand("status").args(flags).output().unwrap();
    let json = serde_json::from_slice(&run(&["--json"]).stdout).unwrap();
    let text = String::from_utf8(run(&[]).stdout).unwrap();
    (json, text)
}

fn committed(postgres: &Postgres) -> Vec<String> {
    postgres.sql("SELECT id FROM jobs ORDER BY id").concat()
}

/// Asserts that the session's backend is gone: it can do nothing any more.
#[track_caller]
fn assert_gone(postgres: &Postgres, wire: &mut Wire) {
    assert!(!postgres.has_session(wire.backend_pid()));
    let end = wire.until_closed();
    assert!(end.iter().any(|m| m.is_closed()), "{}", pretty(&end));
}

#[test]
fn a_poisoned_scope_comes_back_with_an_embedded_store() {
    let postgres = server();
    let mut proxy = Proxy::start(&postgres);
    leader(&proxy.endpoint(), "34").ok("INSERT INTO jobs VALUES (34)");
    let mut poisoned = leader(&proxy.endpoint(), POISON);
    poisoned.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    assert_refused(&proxy.endpoint(), "35", "PF001");
    let in_use = repair(&proxy, "34", &["--yes"]);
    assert_failed(
        &in_use,
        &["in use by another process", "stop the proxy first"],
    );
    proxy.kill();
    assert_failed(
        &repair(&proxy, "34", &[]),
        &[
            POISON,
            "set the mark to 34",
            "nothing was changed; add --yes",
        ],
    );
    let record = repaired(&repair(&proxy, "34", &["--yes"]));
    assert_eq!(record["event"], "scope_repaired");
    assert_eq!(record["completed"], true);
    assert_eq!(
        (&record["new_mark"], &record["new_incarnation"]),
        (&34.into(), &1.into())
    );
    assert_eq!(record["old_mark"], i64::MAX);
    assert_eq!(record["reason"], "a script said 2^63-1");
    assert!(record["by"].as_str().unwrap().contains('@'), "{record}");
    let (seen, text) = status(&proxy);
    let scope = &seen["scopes"][0];
    assert_eq!(
        (&scope["mark"], &scope["incarnation"]),
        (&34.into(), &1.into())
    );
    assert_eq!(scope["repair"]["old_mark"], i64::MAX);
    let last = &seen["takeovers"][0];
    assert_eq!((&last["from"], &last["to"]), (&i64::MAX.into(), &34.into()));
    assert_eq!(last["outcome"], "complete");
    assert!(text.contains("34 (incarnation 1)"), "{text}");
    assert!(text.contains("repaired scopes"), "{text}");
    assert!(text.contains(&format!("{POISON} -> 34")), "{text}");
    proxy.restart();
    assert_refused(&proxy.endpoint(), "33", "PF001");
    leader(&proxy.endpoint(), "35").ok("INSERT INTO jobs VALUES (35)");
    assert_eq!(committed(&postgres), ["34", "35"]);
    proxy.terminate();
    // The witness agrees, and the repair stays on record.
    proxy.restart();
    assert_refused(&proxy.endpoint(), "34", "PF001");
    assert_eq!(
        postgres.sql("SELECT token, incarnation FROM pgpalisade.mark WHERE scope = 'default'"),
        [["35", "1"]]
    );
}

/// Two proxies on one store keep serving. The poisoned session ends at either proxy, and both learn of it.
fn a_poisoned_scope_comes_back_under_two_proxies(store: Store) {
    let postgres = server();
    let options = Options {
        store,
        ..Options::new(&postgres)
    };
    let first = Proxy::start_with(options.clone());
    let second = Proxy::start_with(options);
    let mut elsewhere = leader(&first.endpoint(), "other=5");
    let mut poisoned = leader(&first.endpoint(), POISON);
    poisoned.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    for proxy in [&first, &second] {
        assert_refused(&proxy.endpoint(), "35", "PF001");
    }
    let record = repaired(&repair(&first, "34", &["--yes"]));
    assert_eq!(record["sessions_to_end"], 1);
    assert_gone(&postgres, &mut poisoned);
    // Both have cached the poison. They hear of the repair, or look it up.
    for (proxy, token) in [(&second, "35"), (&first, "36")] {
        wait_until("the proxy to hear of the repair", || {
            refusal(&proxy.endpoint(), token).is_none()
        });
        let mut now = leader(&proxy.endpoint(), token);
        now.ok(&format!("INSERT INTO jobs VALUES ({token})"));
        // The token of the first incarnation is below the repaired mark.
        assert_refused(&proxy.endpoint(), "33", "PF001");
    }
    elsewhere.ok("SELECT 1");
    assert_eq!(committed(&postgres), ["35", "36"]);
}

#[test]
fn a_poisoned_scope_comes_back_under_two_proxies_on_etcd() {
    let etcd = Etcd::start(1);
    a_poisoned_scope_comes_back_under_two_proxies(Store::Url(etcd.authority()));
}

#[test]
fn a_poisoned_scope_comes_back_under_two_proxies_on_postgres() {
    let marks = Postgres::start();
    let dsn = format!("postgres:{}", marks.admin_dsn());
    a_poisoned_scope_comes_back_under_two_proxies(Store::Url(dsn));
}

/// The proxies' own epoch is not a scope of leaders: set back, it would hide a restore of the store.
#[test]
fn the_epoch_is_nobodys_to_repair() {
    let postgres = server();
    let mut proxy = Proxy::start(&postgres);
    proxy.terminate();
    let mut command = proxy.subcommand("scope repair");
    command.args([
        "--scope",
        "pgpalisade.epoch",
        "--mark",
        "1",
        "--reason",
        "a mistake",
        "--yes",
    ]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_says(&said, "the proxies' own count of their starts");
}

/// A session bound to the old incarnation that the operator's role cannot end.
#[test]
fn a_repair_that_cannot_end_a_session_can_be_run_again() {
    let postgres = server();
    postgres.sql("CREATE ROLE c LOGIN; GRANT pg_signal_backend, pg_read_all_stats TO c");
    let etcd = Etcd::start(1);
    let mut proxy = Proxy::start_with(Options {
        store: Store::Url(etcd.authority()),
        ..Options::new(&postgres)
    });
    let mut poisoned = leader(&proxy.endpoint(), POISON);
    let mut declared_later = leader(&proxy.endpoint(), POISON);
    let control = proxy.options_mut().control.clone();
    proxy.options_mut().control = control.replace("user=postgres", "user=c");
    let output = repair(&proxy, "34", &["--yes"]);
    assert_failed(
        &output,
        &[
            "is set, but the repair is not complete",
            "superuser",
            "run the same command again",
        ],
    );
    let begun = record(&output);
    assert_eq!(
        (&begun["completed"], &begun["resumed"]),
        (&false.into(), &false.into())
    );
    // Remaining sessions are refused by the proxy's cache, which has heard of the repair.
    wait_for("the proxy to hear of the repair", || {
        let answer = poisoned.query("INSERT INTO jobs VALUES (1) ON CONFLICT DO NOTHING");
        errors(&answer).contains(&"PF001".to_owned()).then_some(())
    });
    postgres.sql("DELETE FROM jobs");
    let answer = declared_later.query("INSERT INTO jobs VALUES (2)");
    let text = pretty(&answer);
    assert_says(&text, "declared before the scope was repaired");
    proxy.options_mut().control = control;
    let finished = repaired(&repair(&proxy, "34", &["--yes"]));
    assert_eq!(
        (&finished["completed"], &finished["resumed"]),
        (&true.into(), &true.into())
    );
    assert_eq!(finished["new_incarnation"], 1);
    assert_gone(&postgres, &mut poisoned);
    assert_gone(&postgres, &mut declared_later);
    leader(&proxy.endpoint(), "35").ok("INSERT INTO jobs VALUES (35)");
    assert_eq!(committed(&postgres), ["35"]);
}

/// A client of a pool had its token since its login, and has laid it down.
#[test]
fn a_reset_brings_back_no_token_from_before_a_repair() {
    for token in ["34", "50"] {
        let postgres = server();
        let etcd = Etcd::start(1);
        let options = Options {
            store: Store::Url(etcd.authority()),
            ..Options::new(&postgres)
        };
        let proxy = Proxy::start_with(options.flag("--pool", "transaction"));
        let endpoint = proxy.endpoint();
        let mut old = leader(&endpoint, token);
        old.ok("SET fencing.token = ''");
        old.ok("SELECT 1");
        let mut other = leader(&endpoint, "60");
        other.ok("SELECT 1");
        repaired(&repair(&proxy, "34", &["--yes"]));
        wait_until("the proxy to know", || refusal(&endpoint, "34").is_none());
        let mut new = leader(&endpoint, "34");
        old.ok("RESET ALL");
        old.fails("INSERT INTO jobs VALUES (1)", "PF001");
        other.fails("INSERT INTO jobs VALUES (1)", "PF001");
        new.ok("INSERT INTO jobs VALUES (2)");
    }
}

/// The client asks again before the lease is given back.
#[test]
fn a_lease_from_before_a_repair_gives_no_token() {
    let (postgres, etcd) = (server(), Etcd::start(1));
    let options = Options {
        store: Store::Url(etcd.authority()),
        ..Options::new(&postgres)
    };
    let proxy = Proxy::start_with(options.flag("--pool", "transaction"));
    let lease = "SET fencing.token = 'lease:60s'";
    let [mut poisons, mut holder, mut plain] =
        [(); 3].map(|()| Wire::login(&proxy.endpoint(), &TRUSTED));
    poisons.ok("SET fencing.token = 100");
    holder.ok(lease);
    assert_eq!(holder.rows("SHOW fencing.token"), [["101"]]);
    repaired(&repair(&proxy, "3", &["--yes"]));
    wait_until("the proxy to know", || {
        plain.rows("SHOW fencing.mark") == [["3"]]
    });
    holder.send(&Batch::new().query("SELECT 1").query(lease));
    assert_error(&holder.until_ready(), "PF001");
    assert_eq!(tags(&holder.until_ready()), "C ZI");
    assert_eq!(holder.rows("SHOW fencing.token"), [["4"]]);
}

/// A client of a listener logs in before the proxy knows of the repair.
#[test]
fn a_listener_does_not_undo_a_repair() {
    let (postgres, marks, port) = (server(), Postgres::start(), free_port());
    let listener = format!("{{ listen = \"127.0.0.1:{port}\", token = \"lease\" }}");
    let options = Options {
        store: Store::Url(format!("postgres:{}", marks.admin_dsn())),
        ..Options::new(&postgres)
    };
    let proxy = Proxy::start_with(options.flag("--listener", &listener));
    let listener = Endpoint::Tcp(([127, 0, 0, 1], port).into());
    let token = |token: &str| {
        wait_until("the token of the listener", || {
            let mut wire = Wire::open(&listener, &[]);
            let is_open = errors(&wire.until_ready()).is_empty();
            is_open && pretty(&wire.query("SHOW fencing.token")).contains(&format!("{token:?}"))
        });
    };
    token("1");
    leader(&proxy.endpoint(), "1000").ok("SELECT 1");
    token("1001");
    // The session that hears of changes is the last one that the proxy has opened.
    let hears = marks.value(
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgpalisade%' \
         ORDER BY backend_start DESC LIMIT 1",
    );
    let hears = hears.parse().unwrap();
    pause(hears);
    repaired(&repair(&proxy, "3", &["--yes"]));
    let mut early = Wire::open(&listener, &[]);
    early.until_ready();
    signal(hears, Signal::CONT);
    token("4");
}
