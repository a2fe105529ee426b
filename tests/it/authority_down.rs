//! Outage of the authority: bound sessions go on, new declarations fail in time, and everything recovers without
//! help.

use std::time::{Duration, Instant};

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::{Signal, signal, wait_for, wait_until};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::stage::leader;
use pgpalisade_test_servers::wire::{TRUSTED, Wire, pretty};

/// `--takeover-timeout` of these tests.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Far above the delays of a machine that is busy with other tests.
const SLACK: Duration = Duration::from_secs(8);
/// Period in which writes are counted.
const COUNTED: Duration = Duration::from_millis(500);

/// A proxy with a reachable store, a session bound through it, and an unbound one.
struct Scene {
    bound: Wire,
    plain: Wire,
    proxy: Proxy,
    http: Http,
    _postgres: Postgres,
}

impl Scene {
    fn with(store: String) -> Self {
        let postgres = Postgres::start();
        postgres.sql("CREATE TABLE jobs (id serial)");
        let http = Http::free();
        let proxy = Proxy::start_with(
            http.options(&postgres)
                .flag("--takeover-timeout", "2s")
                .store(store),
        );
        let session = TRUSTED;
        Self {
            bound: leader(&proxy.endpoint(), "34"),
            plain: Wire::login(&proxy.endpoint(), &session),
            proxy,
            http,
            _postgres: postgres,
        }
    }

    /// Number of the bound session's writes in a short time. None is refused.
    fn writes(&mut self) -> u32 {
        let (begin, mut count) = (Instant::now(), 0);
        while begin.elapsed() < COUNTED {
            self.bound.ok("INSERT INTO jobs DEFAULT VALUES");
            count += 1;
        }
        count
    }

    /// Asserts that lines with this message are logged once, however often the authority is asked.
    #[track_caller]
    fn assert_told(&self, message: &str) {
        let times = wait_for(message, || {
            let times = self.proxy.output().matches(message).count();
            (times > 0).then_some(times)
        });
        assert!(times <= 2, "{times} times {message}");
    }

    /// Asserts G5, G6 and G7 during the outage.
    fn assert_away(&mut self, before: u32) {
        let begin = Instant::now();
        // Even for an equal token: an unregistered session does not write.
        let answer = self.plain.query("SET fencing.token = 34");
        let took = begin.elapsed();
        assert_eq!(answer[0].sqlstate(), "PF004", "{}", pretty(&answer));
        assert!(took < TIMEOUT + SLACK, "{took:?}");
        self.plain.fails("SET fencing.token = 35", "PF004");
        self.plain.fails("INSERT INTO jobs DEFAULT VALUES", "PF002");
        self.plain.fails("SHOW fencing.history", "PF004");
        let away = self.writes();
        println!(
            "writes of a bound session in {COUNTED:?}: {before} before, {away} while it is away"
        );
        // Independent of the machine's load: a write that asked the authority would wait for seconds.
        assert!(away > 10, "{away} writes");
        self.assert_told("the authority does not answer");
    }

    /// Asserts the recovery: declarations succeed again without a restart, and the old session is ended.
    fn assert_back(&mut self) {
        wait_until("a declaration to succeed again", || {
            let answer = self.plain.query("SET fencing.token = 35");
            answer[0].tag != b'E'
        });
        self.assert_told("the authority is back");
        self.plain.ok("INSERT INTO jobs DEFAULT VALUES");
        self.bound.fails("INSERT INTO jobs DEFAULT VALUES", "PF001");
        assert!(!self.proxy.output().contains("panicked"));
    }
}

#[test]
fn etcd_is_killed() {
    let mut etcd = Etcd::start(1);
    let mut scene = Scene::with(etcd.authority());
    let before = scene.writes();
    etcd.kill(0);
    scene.assert_away(before);
    etcd.restart(0);
    scene.assert_back();
}

#[test]
fn postgresql_hangs() {
    let marks = Postgres::start();
    let mut scene = Scene::with(format!("postgres:{}", marks.admin_dsn()));
    let before = scene.writes();
    let every = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgpalisade%'";
    let pids: Vec<u32> = marks
        .sql(every)
        .concat()
        .iter()
        .map(|pid| pid.parse().unwrap())
        .chain([marks.pid()])
        .collect();
    pids.iter().for_each(|&pid| signal(pid, Signal::STOP));
    scene.assert_away(before);
    pids.iter().for_each(|&pid| signal(pid, Signal::CONT));
    scene.assert_back();
}

/// As one whose disk is full: its answers to reads do not say that it is back.
#[test]
fn a_store_that_can_only_be_read() {
    let marks = Postgres::start();
    let mut scene = Scene::with(format!("postgres:{}", marks.admin_dsn()));
    let mut admin = marks.admin();
    admin.ok("BEGIN; LOCK TABLE pgpalisade_authority.marks IN SHARE MODE");
    scene.plain.fails("SET fencing.token = 35", "PF004");
    // It is read.
    for _ in 0..3 {
        assert_eq!(scene.http.get("/readyz").status, 200);
    }
    admin.ok("COMMIT");
    scene.assert_back();
    let told = scene
        .proxy
        .output()
        .matches("the authority is back")
        .count();
    assert_eq!(told, 1);
}

/// A declaration without an answer may have been stored. A takeover with its token then spares the session, which
/// must not continue under its earlier, lower token. A session without an earlier token goes on.
#[test]
fn a_declaration_without_an_answer() {
    let etcd = Etcd::start(1);
    let mut scene = Scene::with(etcd.authority());
    let mut other = leader(&scene.proxy.endpoint(), "34");
    etcd.pause(0);
    let answer = scene.bound.query("SET fencing.token = 35");
    assert_eq!(answer[0].severity(), "FATAL", "{}", pretty(&answer));
    assert_eq!(answer[0].sqlstate(), "PF004", "{}", pretty(&answer));
    assert!(answer[1].is_closed(), "{}", pretty(&answer));
    let answer = scene.plain.query("SET fencing.token = 35");
    assert_eq!(answer[0].severity(), "ERROR", "{}", pretty(&answer));
    // Another scope is independent of the held token.
    let answer = other.query("SET fencing.token = 'default=34,billing=7'");
    assert_eq!(answer[0].severity(), "ERROR", "{}", pretty(&answer));
    other.ok("INSERT INTO jobs DEFAULT VALUES");
    etcd.resume(0);
}

/// A declaration without an answer may also be stored late, after the session has declared a lower token. It then no
/// longer replaces that one.
#[test]
fn less_than_a_declaration_without_an_answer() {
    let etcd = Etcd::start(1);
    let mut scene = Scene::with(etcd.authority());
    // Its server process is known before the declaration, which has all of the time.
    scene.plain.ok("SET fencing.token = 'billing=7'");
    etcd.pause(0);
    let answer = scene.plain.query("SET fencing.token = 36");
    assert_eq!(answer[0].severity(), "ERROR", "{}", pretty(&answer));
    etcd.resume(0);
    wait_until("the authority to be back", || {
        let mut other = Wire::login(&scene.proxy.endpoint(), &TRUSTED);
        let answer = other.query("SET fencing.token = 'billing=7'");
        answer[0].tag != b'E'
    });
    let answer = scene.plain.query("SET fencing.token = 35");
    assert_eq!(answer[0].severity(), "FATAL", "{}", pretty(&answer));
    assert_eq!(answer[0].sqlstate(), "PF004", "{}", pretty(&answer));
    assert!(answer[1].is_closed(), "{}", pretty(&answer));
}

/// A session that has cleared its token stays on the register. So it can set the same token again without the
/// authority, and a takeover ends it with or without a token.
#[test]
fn a_token_that_was_laid_down() {
    let etcd = Etcd::start(1);
    let mut scene = Scene::with(etcd.authority());
    let set = "SET fencing.token = 34";
    scene.plain.ok(set);
    scene.plain.ok("RESET fencing.token");
    scene
        .plain
        .fails("INSERT INTO jobs DEFAULT VALUES", "PF002");
    etcd.pause(0);
    scene.plain.ok(set);
    scene.plain.ok("INSERT INTO jobs DEFAULT VALUES");
    scene.plain.ok("RESET fencing.token");
    scene
        .plain
        .ok("BEGIN; SET LOCAL fencing.token = 34; INSERT INTO jobs DEFAULT VALUES; COMMIT");
    etcd.resume(0);
    wait_until("a takeover", || {
        let mut next = Wire::login(&scene.proxy.endpoint(), &TRUSTED);
        let answer = next.query("SET fencing.token = 35");
        answer[0].tag != b'E'
    });
    let answer = scene.plain.query("SELECT 1");
    assert_eq!(answer[0].severity(), "FATAL", "{}", pretty(&answer));
}
