//! Listeners that give their sessions the token under which the proxy leads.

mod followed;

use std::time::Duration;

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::{
    PATIENCE, Signal, assert_says, free_port, signal, wait_for, wait_until,
};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Proxy, Store};
use pgpalisade_test_servers::wire::{
    Batch, Endpoint, Message, TRUSTED, Wire, assert_error, errors, pretty,
};
use serde_json::Value;

const SETUP: &str =
    "CREATE TABLE jobs (id int, token text DEFAULT current_setting('fencing.token', true))";

/// A result that fills every buffer.
const LONG: &str = "SELECT repeat('x', 1000) FROM generate_series(1, 100000)";

const FULL: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'";

/// The ways in which clients get server connections.
const POOLS: [&str; 2] = ["session", "transaction"];

/// A proxy with a listener whose sessions get a token.
struct Replica {
    proxy: Proxy,
    http: Http,
    listener: Endpoint,
}

impl Replica {
    fn start(postgres: &Postgres, store: &Store, more: &str, flags: &[(&str, &str)]) -> Self {
        let keys = format!("token = \"lease\"{more}");
        Self::start_with(postgres, store, &keys, flags)
    }

    /// With these keys of the listener.
    fn start_with(postgres: &Postgres, store: &Store, keys: &str, flags: &[(&str, &str)]) -> Self {
        let (http, port) = (Http::free(), free_port());
        let table = format!("{{ listen = \"127.0.0.1:{port}\", {keys} }}");
        let mut options = http
            .options(postgres)
            .flag("--listener", &table)
            .flags(flags);
        options.store = store.clone();
        Self {
            proxy: Proxy::start_with(options),
            http,
            listener: Endpoint::Tcp(([127, 0, 0, 1], port).into()),
        }
    }

    /// What `/leader` says, while it leads.
    fn leader(&self) -> Option<Value> {
        let answer = self.http.get("/leader");
        (answer.status == 200).then(|| serde_json::from_str(&answer.body).unwrap())
    }

    /// Waits until it leads, and returns its token.
    fn leads(&self) -> u64 {
        wait_for("the lead", || self.leader()?["token"].as_u64())
    }

    fn open(&self) -> Wire {
        Wire::login(&self.listener, &TRUSTED)
    }

    /// Connections that hold a token. `None`: the proxy has ended.
    fn holders(&self) -> Option<usize> {
        let request = "GET /api/v1/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let answer = self.http.send(request).ok()?;
        let (_head, body) = answer.split_once("\r\n\r\n")?;
        let sessions: Value = serde_json::from_str(body).unwrap();
        let sessions = sessions.as_array().unwrap().iter();
        Some(sessions.filter(|session| session["tokens"] != "").count())
    }
}

fn one(more: &str, flags: &[(&str, &str)]) -> (Postgres, Replica) {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let replica = Replica::start(&postgres, &Store::Embedded, more, flags);
    (postgres, replica)
}

/// Two proxies with one store, of which the first leads.
fn two(flags: &[(&str, &str)]) -> (Postgres, Etcd, [Replica; 2]) {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let etcd = Etcd::start(1);
    let store = Store::Url(etcd.authority());
    let first = Replica::start(&postgres, &store, "", flags);
    assert_eq!(first.leads(), 1);
    let second = Replica::start(&postgres, &store, "", flags);
    (postgres, etcd, [first, second])
}

#[track_caller]
fn value(wire: &mut Wire, sql: &str) -> String {
    wire.rows(sql).concat().concat()
}

/// Asserts that the connection was closed with this error.
#[track_caller]
fn assert_ended(mut wire: Wire, sqlstate: &str, why: &str) {
    let last = wire.until_closed();
    assert_eq!(errors(&last), [sqlstate], "{}", pretty(&last));
    assert_says(&pretty(&last), why);
}

fn written(postgres: &Postgres) -> String {
    postgres.value(
        "SELECT coalesce(string_agg(coalesce(token, '-'), ',' ORDER BY token), '') FROM jobs",
    )
}

#[test]
fn sessions_get_the_token_and_declare_none() {
    for pool in POOLS {
        let (postgres, replica) = one("", &[("--pool", pool)]);
        assert_eq!(replica.leads(), 1);
        let mut wire = replica.open();
        for reset in ["SELECT 1", "RESET ALL", "DISCARD ALL", "BEGIN; ROLLBACK"] {
            wire.ok(reset);
            let found = value(&mut wire, "SHOW fencing.token");
            assert_eq!(found, "1", "{pool} {reset}");
            let insert = "INSERT INTO jobs VALUES (1) RETURNING token";
            assert_eq!(value(&mut wire, insert), "1", "{pool} {reset}");
        }
        for own in [
            "SET fencing.token = 7",
            "SET fencing.token = 'next'",
            "SELECT set_config('fencing.token', '7', false)",
            "BEGIN; SET LOCAL fencing.token = 7",
        ] {
            let refused = wire.query(own);
            assert_error(&refused, "PF005");
            assert_says(&pretty(&refused), "its listener gives it one");
            wire.query("ROLLBACK");
        }
        assert_refused_login(&replica, &[("fencing.token", "7")], "PF005");
        assert_eq!(value(&mut wire, "SHOW fencing.token"), "1");
        // The other listener is as ever.
        let mut other = Wire::login(&replica.proxy.endpoint(), &TRUSTED);
        other.fails("INSERT INTO jobs VALUES (2)", "PF002");
        other.ok("SET fencing.token = 1");
        assert_eq!(written(&postgres), "1,1,1,1");
    }
}

#[test]
fn sessions_of_a_listener_can_have_server_connections_of_their_own() {
    let limits = [("--backends-max", "1"), ("--backends-leaders", "0")];
    let more = [("--backends-sessions", "1"), ("--pool", "transaction")];
    let (_postgres, replica) = one(", pool = \"session\"", &[limits, more].concat());
    replica.leads();
    let mut own = replica.open();
    own.ok("BEGIN");
    own.ok("INSERT INTO jobs VALUES (1)");
    let pid = value(&mut own, "SELECT pg_backend_pid()");
    assert_eq!(pid, own.backend_pid().to_string());
    // The only place of the pool is free.
    Wire::login(&replica.proxy.endpoint(), &TRUSTED).ok("SELECT 1");
    assert_refused_login(&replica, &[], "53300");
}

#[track_caller]
fn assert_refused_login(replica: &Replica, more: &[(&str, &str)], sqlstate: &str) -> Vec<Message> {
    let mut wire = Wire::open(&replica.listener, more);
    let answer = wire.until_closed();
    assert_eq!(errors(&answer), [sqlstate], "{}", pretty(&answer));
    answer
}

/// A listener alone is the only one, and a policy decides who gets its token.
#[test]
fn while_another_leads_there_is_no_token() {
    let (_postgres, _etcd, [first, second]) = two(&[]);
    assert_eq!(first.leader().unwrap()["scope"], "default");
    let unled = second.http.get("/leader");
    assert_eq!(
        (unled.status, &*unled.body),
        (503, "this proxy does not lead\n")
    );
    assert_eq!(first.http.get("/leader?scope=other").status, 503);
    let mut wire = second.open();
    assert_eq!(value(&mut wire, "SHOW fencing.token"), "");
    assert_eq!(value(&mut wire, "SELECT count(*) FROM jobs"), "0");
    wire.fails("INSERT INTO jobs VALUES (1)", "PF002");
    wire.fails("SET fencing.token = 1", "PF005");
}

/// A pool would keep them for good.
#[test]
fn connections_without_a_token_end_once_the_proxy_leads() {
    for pool in POOLS {
        let (_postgres, _etcd, [first, second]) = two(&[("--pool", pool)]);
        let mut inside = second.open();
        inside.ok("BEGIN");
        inside.ok("SELECT 1");
        let idle = second.open();
        let mut other = Wire::login(&second.proxy.endpoint(), &TRUSTED);
        signal(first.proxy.pid(), Signal::TERM);
        assert_eq!(second.leads(), 2);
        for wire in [inside, idle] {
            assert_ended(wire, "57P01", "a new connection gets the token");
        }
        second.open().ok("INSERT INTO jobs VALUES (1)");
        other.ok("SELECT 1");
    }
}

#[test]
fn a_listener_can_refuse_who_would_have_no_token() {
    let (postgres, replica) = one(", without = \"refuse\"", &[]);
    replica.leads();
    let wire = replica.open();
    // A higher number ends the term, and it pauses before it campaigns again.
    Wire::login(&replica.proxy.endpoint(), &TRUSTED).ok("SET fencing.token = 7");
    assert_ended(wire, "PF001", "is at 7");
    let refused = assert_refused_login(&replica, &[], "57P03");
    assert_says(
        &pretty(&refused),
        "this proxy does not lead scope \"default\"",
    );
    assert_eq!(replica.leads(), 8);
    replica.open().ok("INSERT INTO jobs VALUES (1)");
    assert_eq!(written(&postgres), "8");
}

/// A leader pauses between its check and its write. Meanwhile its proxy steps down.
#[test]
fn a_connection_ends_before_the_lease_is_given_back() {
    for pool in POOLS {
        let (postgres, _etcd, [first, second]) = two(&[("--pool", pool)]);
        let mut idle = first.open();
        assert_eq!(value(&mut idle, "SELECT count(*) FROM jobs"), "0");
        let mut inside = first.open();
        inside.ok("BEGIN");
        inside.ok("INSERT INTO jobs VALUES (1)");
        let mut busy = first.open();
        busy.send(&Batch::new().query("SELECT pg_sleep(60)"));
        // Its end takes longer, because it does not read.
        let mut deaf = first.open();
        deaf.send(&Batch::new().query(LONG));
        wait_until("four leaders", || first.holders() == Some(4));
        wait_until("full buffers", || postgres.value(FULL) == "1");
        signal(first.proxy.pid(), Signal::TERM);
        assert_eq!(second.leads(), 2);
        // It answers up to its end.
        assert!(first.holders().is_none_or(|holders| holders == 0), "{pool}");
        let why = "The proxy stops, or a new process takes over";
        for wire in [idle, inside] {
            assert_ended(wire, "PF001", why);
        }
        assert_ended(busy, "08007", "it is not known whether");
        drop((deaf, first));
        assert_eq!(written(&postgres), "");
        second.open().ok("INSERT INTO jobs VALUES (1)");
        assert_eq!(written(&postgres), "2");
    }
}

/// The lease's record vanishes from the store.
#[test]
fn a_lost_lease_ends_the_connections() {
    for pool in POOLS {
        let (postgres, store) = (Postgres::start(), Etcd::start(1));
        postgres.sql(SETUP);
        let url = Store::Url(store.authority());
        let replica = Replica::start(&postgres, &url, "", &[("--pool", pool)]);
        assert_eq!(replica.leads(), 1);
        let mut inside = replica.open();
        inside.ok("BEGIN");
        inside.ok("INSERT INTO jobs VALUES (1)");
        let wires = [inside, replica.open()];
        store.ctl(&["del", "--prefix", "/pgpalisade/scope-lease/"]);
        for wire in wires {
            assert_ended(wire, "PF001", "The lease could not be renewed in time");
        }
        wait_until("another term", || replica.leads() == 2);
        replica.open().ok("INSERT INTO jobs VALUES (1)");
        assert_eq!(written(&postgres), "2");
    }
}

/// Nothing but the token helps here: the proxy cannot close its connections while it sleeps.
#[test]
fn what_a_paused_proxy_has_let_in_is_fenced() {
    for pool in POOLS {
        let (postgres, _etcd, [first, second]) = two(&[("--pool", pool)]);
        let mut wires = [first.open(), first.open()];
        wires[0].ok("BEGIN");
        wires[0].ok("INSERT INTO jobs VALUES (1)");
        wires[1].ok("SELECT 1");
        first.proxy.pause();
        assert_eq!(second.leads(), 2);
        let mut next = second.open();
        next.ok("INSERT INTO jobs VALUES (2)");
        for wire in &mut wires {
            wire.send(&Batch::new().query("INSERT INTO jobs VALUES (1)"));
        }
        first.proxy.resume();
        for mut wire in wires {
            wire.set_patience(PATIENCE + Duration::from_secs(10));
            let last = wire.until_closed();
            let errors = errors(&last);
            assert!(!errors.is_empty(), "{pool}: {}", pretty(&last));
        }
        next.ok("INSERT INTO jobs VALUES (2)");
        assert_eq!(written(&postgres), "2,2", "{pool}");
        wait_until("the first one's end of its term", || {
            first.leader().is_none() && first.holders() == Some(0)
        });
    }
}

/// Observe mode ends and refuses nobody.
#[test]
fn where_it_is_only_observed_nobody_is_ended() {
    let (_postgres, replica) = one(", without = \"refuse\"", &[("--observe=on", "--log=info")]);
    replica.leads();
    let mut wire = replica.open();
    Wire::login(&replica.proxy.endpoint(), &TRUSTED).ok("SET fencing.token = 7");
    wait_until("the end of the term", || replica.leader().is_none());
    let mut other = replica.open();
    for wire in [&mut wire, &mut other] {
        wire.ok("SET fencing.token = 9");
        wire.ok("INSERT INTO jobs VALUES (1)");
    }
}

/// What has kept an old token, or none, is of no use to its pool any more.
#[test]
fn once_the_mode_is_enforced_old_connections_are_closed() {
    let policy = PolicyFile::new("[defaults]\nmode = \"observe\"\n");
    let path = policy.path().display().to_string();
    let (_postgres, replica) = one("", &[("--policy", &path)]);
    replica.leads();
    let mut kept = replica.open();
    Wire::login(&replica.proxy.endpoint(), &TRUSTED).ok("SET fencing.token = 7");
    wait_until("the next term", || replica.leads() == 8);
    kept.ok("INSERT INTO jobs VALUES (1)");
    policy.reload(&replica.proxy, "");
    assert_error(&kept.until_closed(), "57P01");
    replica.open().ok("INSERT INTO jobs VALUES (2)");
}

/// A proxy that accepts no clients leaves the lead to another, whoever stays connected to it.
#[test]
fn a_proxy_that_waits_for_its_last_clients_does_not_lead() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().display().to_string();
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let etcd = Etcd::start(1);
    let store = Store::Url(etcd.authority());
    let first = Replica::start(&postgres, &store, "", &[("--console", &socket)]);
    assert_eq!(first.leads(), 1);
    let second = Replica::start(&postgres, &store, "", &[]);
    let mut member = first.open();
    let mut monitoring = Wire::login(&first.proxy.endpoint(), &TRUSTED);
    let console = Endpoint::Unix(dir.path().join(".s.PGSQL.6433"));
    let mut operator = Wire::login(&console, &[("user", "me"), ("database", "pgpalisade")]);
    operator.ok("SHUTDOWN WAIT_FOR_CLIENTS");
    member.ok("INSERT INTO jobs VALUES (1)");
    drop(member);
    assert_eq!(second.leads(), 2);
    monitoring.ok("SELECT 1");
}
