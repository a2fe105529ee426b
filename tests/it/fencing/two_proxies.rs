//! Two proxy processes on one etcd: the first is paused or killed, the second takes over.

use std::time::Duration;

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::held_relay::{Direction, HeldRelay};
use pgpalisade_test_servers::machine::{wait_for, wait_until};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::leader;
use pgpalisade_test_servers::wire::{Batch, Endpoint, Message, Wire, pretty};

use super::{SETUP, assert_ended};

/// The second proxy is dropped first, the server last.
struct Pair {
    second: Proxy,
    first: Proxy,
    relay: HeldRelay,
    /// Between the second proxy's control connection and the server.
    control: HeldRelay,
    _etcd: Etcd,
    postgres: Postgres,
}

impl Pair {
    /// The first proxy reaches the server through the relay.
    fn start() -> Self {
        let postgres = Postgres::start();
        postgres.sql(SETUP);
        let etcd = Etcd::start(1);
        let Endpoint::Tcp(server) = postgres.tcp() else {
            unreachable!("tcp is tcp")
        };
        let relay = HeldRelay::start(server);
        let mut options = Options::new(&postgres).store(etcd.authority());
        let mut behind_relay = options.clone();
        behind_relay.upstream = format!("postgres://{}", relay.address());
        let first = Proxy::start_with(behind_relay);
        let control = HeldRelay::start(server);
        options.control = format!(
            "host=127.0.0.1 port={} user=postgres dbname=postgres",
            control.address().port()
        );
        let second = Proxy::start_with(options);
        Self {
            second,
            first,
            relay,
            control,
            _etcd: etcd,
            postgres,
        }
    }

    fn old_leader(&self) -> Wire {
        leader(&self.first.endpoint(), "33")
    }

    fn new_leader(&self) -> Wire {
        leader(&self.second.endpoint(), "34")
    }

    /// A session at the second proxy that has declared in another scope, so that its backend is known.
    fn second_plain(&self) -> Wire {
        leader(&self.second.endpoint(), "other=1")
    }

    fn committed(&self) -> Vec<String> {
        self.postgres
            .sql("SELECT id FROM jobs ORDER BY id")
            .concat()
    }
}

/// The write is admitted and in flight: part of it has left the proxy, which is then stopped (SIGSTOP).
#[test]
fn paused_between_the_check_and_the_write() {
    let pair = Pair::start();
    let mut old = pair.old_leader();
    old.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    pair.relay.hold(Direction::ToServer);
    // Exceeds all socket buffers on the way, so that the proxy has to wait in the middle.
    let big = format!(
        "INSERT INTO jobs VALUES (2, '{}'); COMMIT",
        "x".repeat(64 << 20)
    );
    let sender = std::thread::spawn(move || {
        old.send(&Batch::new().query(&big));
        old
    });
    wait_until("the write to be on its way", || {
        pair.relay.held_bytes(Direction::ToServer) > 0
    });
    pair.first.pause();
    let mut new = pair.new_leader();
    new.ok("INSERT INTO jobs VALUES (1, 'the new leader')");
    pair.first.resume();
    pair.relay.release(Direction::ToServer);
    let answer = sender.join().unwrap().until_closed();
    assert!(
        !answer.iter().any(|message| message.tag == b'C'),
        "{}",
        pretty(&answer)
    );
    assert_eq!(pair.committed(), ["1"]);
    assert_eq!(
        pair.postgres.value("SELECT who FROM jobs"),
        "the new leader"
    );
    assert_first_refuses_33(&pair);
}

/// The COMMIT waits in the socket of the paused proxy, which has not read it yet.
#[test]
fn paused_before_the_check() {
    let pair = Pair::start();
    let mut old = pair.old_leader();
    old.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    pair.first.pause();
    old.send(&Batch::new().query("COMMIT"));
    let mut new = pair.new_leader();
    new.ok("INSERT INTO jobs VALUES (2)");
    pair.first.resume();
    let answer = old.until_closed();
    assert!(
        !answer.iter().any(|message| message.tag == b'C'),
        "{}",
        pretty(&answer)
    );
    assert_eq!(pair.committed(), ["2"]);
    assert_first_refuses_33(&pair);
}

/// The first proxy is killed with a statement running: a takeover through the other one ends its session.
#[test]
fn killed_with_a_statement_running() {
    let mut pair = Pair::start();
    let mut old = pair.old_leader();
    let pid = old.backend_pid();
    old.send(&Batch::new().query("INSERT INTO jobs SELECT 1 FROM pg_sleep(30)"));
    let active =
        format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND state = 'active'");
    wait_until("the statement to run", || {
        pair.postgres.value(&active) == "1"
    });
    pair.first.kill();
    let mut new = pair.new_leader();
    let found = pair.postgres.value(&active);
    assert_eq!(found, "0", "accepted only after it is gone");
    new.ok("INSERT INTO jobs VALUES (2)");
    assert_eq!(pair.committed(), ["2"]);
    pair.first.restart();
    assert_first_refuses_33(&pair);
}

/// Without a pause: a takeover through one proxy ends the sessions of the other in any state.
#[test]
fn a_takeover_ends_the_sessions_of_the_other_proxy() {
    let pair = Pair::start();
    let mut idle = pair.old_leader();
    let mut open = pair.old_leader();
    open.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    let mut running = pair.old_leader();
    running.send(&Batch::new().query("INSERT INTO jobs SELECT 2 FROM pg_sleep(30)"));
    running.set_patience(Duration::from_secs(10));
    let mut new = pair.new_leader();
    new.ok("INSERT INTO jobs VALUES (3)");
    assert_gone(&idle.query("INSERT INTO jobs VALUES (4)"));
    assert_gone(&open.query("COMMIT"));
    assert_gone(&running.until_closed());
    assert_eq!(pair.committed(), ["3"]);
}

/// The second proxy has raised the mark and cannot continue, because its control connection hangs. The first one
/// knows the mark only by its watch: it refuses its lower sessions immediately, before they are ended.
#[test]
fn a_mark_that_is_only_watched() {
    let pair = Pair::start();
    let mut old = pair.old_leader();
    let mut open = pair.old_leader();
    open.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    let mut new = pair.second_plain();
    pair.control.hold(Direction::ToServer);
    // Its backend is already known, so that the declaration itself needs no control connection.
    new.send(&Batch::new().query("SET fencing.token = 34"));
    wait_for("the first proxy to refuse a write", || {
        let answer = old.query("INSERT INTO jobs (id) SELECT 10 + count(*) FROM jobs");
        (answer[0].tag == b'E').then(|| assert_eq!(answer[0].sqlstate(), "PF001"))
    });
    old.ok("SELECT 'it was not ended, only refused'");
    open.fails("COMMIT", "PF001");
    let before = pair.committed();
    pair.control.release(Direction::ToServer);
    let answer = new.until_ready();
    assert_eq!(answer[0].tag, b'C', "{}", pretty(&answer));
    assert_gone(&old.query("SELECT 1"));
    new.ok("INSERT INTO jobs VALUES (3)");
    assert_eq!(pair.committed().len(), before.len() + 1);
}

/// Asserts an end by the server or the proxy: without a watch a proxy cannot know the new mark.
#[track_caller]
fn assert_gone(answer: &[Message]) {
    let error = &answer[0];
    let told =
        ["PF001", "57P01"].contains(&error.sqlstate().as_str()) && error.severity() == "FATAL";
    assert!(told && answer[1].is_closed(), "{}", pretty(answer));
}

/// The first proxy is intact, and knows the new mark.
#[track_caller]
fn assert_first_refuses_33(pair: &Pair) {
    let mut again = Wire::open(&pair.first.endpoint(), &[("fencing.token", "33")]);
    assert_ended(&again.until_ready());
}
