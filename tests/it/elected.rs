//! Scopes whose token is the number of an etcd election: only its leader may declare, and the proxy follows it.

mod faults;

use std::time::{Duration, Instant};

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::machine::{assert_says, wait_until};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy, subcommand};
use pgpalisade_test_servers::stage::{Stage, leader};
use pgpalisade_test_servers::wire::{TRUSTED, Wire, pretty};

const SETUP: &str = "CREATE TABLE jobs (id int)";
const ELECTION: &str = "/elections/jobs";
const POLICY: &str =
    "[scope.jobs]\ntables = [\"*.jobs\"]\nnumbers = { etcd_election = \"/elections/jobs\" }\n";
/// Bound for the end of an old leader. It takes milliseconds on an idle machine.
const SOON: Duration = Duration::from_secs(10);

/// A proxy with its marks in an etcd that also holds the election. It is dropped first.
struct Scene {
    proxy: Proxy,
    postgres: Postgres,
    etcd: Etcd,
    policy: PolicyFile,
}

impl Scene {
    fn start(policy: &str) -> Self {
        let (postgres, etcd) = (Postgres::start(), Etcd::start(1));
        postgres.sql(SETUP);
        let policy = PolicyFile::new(policy);
        let proxy = Self::proxy(&postgres, &etcd, &policy);
        Self {
            proxy,
            postgres,
            etcd,
            policy,
        }
    }

    fn proxy(postgres: &Postgres, etcd: &Etcd, policy: &PolicyFile) -> Proxy {
        let options = Options::new(postgres).policy(policy);
        Proxy::start_with(options.store(etcd.authority()))
    }

    fn stands(&self, candidate: &str) -> u64 {
        self.etcd.stands(ELECTION, candidate)
    }

    fn leaves(&self, candidate: &str) {
        self.etcd.leaves(ELECTION, candidate);
    }

    fn plain(&self) -> Wire {
        Wire::login(&self.proxy.endpoint(), &TRUSTED)
    }

    /// A session of the leader with this number, with an uncommitted write.
    fn writing(&self, number: u64) -> Wire {
        let mut wire = leader(&self.proxy.endpoint(), &format!("jobs={number}"));
        wire.ok("BEGIN; INSERT INTO jobs VALUES (1)");
        wire
    }

    fn rows(&self) -> String {
        self.postgres.value("SELECT count(*) FROM jobs")
    }

    /// Waits until the mark is this number, without a declaration.
    #[track_caller]
    fn reaches(&self, number: u64) {
        let mut wire = self.plain();
        wire.ok("SET fencing.scope = 'jobs'");
        wait_until("the mark to rise", || {
            let mark = wire.rows("SHOW fencing.mark").concat().concat();
            mark == number.to_string()
        });
    }
}

/// Asserts that the declaration is refused with this SQLSTATE and these words.
#[track_caller]
fn assert_refused(wire: &mut Wire, value: &str, sqlstate: &str, words: &str) {
    let told = pretty(&wire.fails(&format!("SET fencing.token = 'jobs={value}'"), sqlstate));
    assert!(told.contains(words), "{words}: {told}");
}

/// Asserts that the session ends with PF001 as its only message.
#[track_caller]
fn assert_ended(mut wire: Wire) {
    let told = pretty(&wire.until_closed());
    assert!(told.contains("PF001"), "{told}");
}

#[test]
fn only_the_number_of_the_leader_counts() {
    let scene = Scene::start(POLICY);
    let mut wire = scene.plain();
    assert_refused(
        &mut wire,
        "5",
        "PF001",
        "nobody leads election \"/elections/jobs\"",
    );
    let (a, b) = (scene.stands("a"), scene.stands("b"));
    let ahead = "has not won election \"/elections/jobs\": its leader has";
    for number in [b, b + 1000, i64::MAX.unsigned_abs()] {
        assert_refused(&mut wire, &number.to_string(), "PF003", ahead);
    }
    assert_refused(&mut wire, &(a - 1).to_string(), "PF001", "is stale");
    scene.reaches(a);
    for take in [
        "next",
        "lease",
        "lease:nowait",
        "lease:60s",
        &format!("after:{a}"),
    ] {
        assert_refused(
            &mut wire,
            take,
            "PF003",
            "cannot be taken: election \"/elections/jobs\" issues it",
        );
    }
    let candidate = format!("jobs={b}");
    let mut login = Wire::open(&scene.proxy.endpoint(), &[("fencing.token", &candidate)]);
    let told = pretty(&login.until_closed());
    assert!(told.contains("PF003") && told.contains("FATAL"), "{told}");
    wire.ok(&format!("SET fencing.token = 'jobs={a}'"));
    wire.ok("INSERT INTO jobs VALUES (1)");
    assert_eq!(scene.rows(), "1");
    // Other scopes are unaffected.
    scene.plain().ok("SET fencing.token = 'other=lease'");
    scene.plain().ok("SET fencing.token = 7");
}

/// The next leader never connects.
#[test]
fn an_old_leader_is_ended_as_soon_as_another_is_elected() {
    let scene = Scene::start(POLICY);
    let (a, b) = (scene.stands("a"), scene.stands("b"));
    let old = scene.writing(a);
    let begun = Instant::now();
    scene.leaves("a");
    assert_ended(old);
    let took = begun.elapsed();
    println!("the old leader was ended {took:?} after its key was deleted");
    assert!(took < SOON, "{took:?}");
    assert_eq!(scene.rows(), "0");
    scene.reaches(b);
    assert_refused(
        &mut scene.plain(),
        &a.to_string(),
        "PF001",
        "is stale: scope \"jobs\" is at",
    );
    let told = pretty(
        &scene
            .plain()
            .query(&format!("SET fencing.token = 'jobs={a}'")),
    );
    assert_says(&told, "by election /elections/jobs via pgpalisade");
    let mut new = leader(&scene.proxy.endpoint(), &format!("jobs={b}"));
    new.ok("INSERT INTO jobs VALUES (2)");
}

/// A leader that is gone changes nothing without a successor: marks do not fall.
#[test]
fn without_a_successor_nobody_is_ended() {
    let scene = Scene::start(POLICY);
    let a = scene.stands("a");
    let mut old = scene.writing(a);
    scene.leaves("a");
    assert_refused(&mut scene.plain(), &a.to_string(), "PF001", "nobody leads");
    old.ok("COMMIT");
    old.ok("BEGIN; INSERT INTO jobs VALUES (2)");
    let b = scene.stands("b");
    assert_ended(old);
    scene.reaches(b);
    assert_eq!(scene.rows(), "1");
}

/// Each proxy follows, and together they end the sessions of all.
#[test]
fn two_proxies_follow_one_election() {
    let scene = Scene::start(POLICY);
    let second = Scene::proxy(&scene.postgres, &scene.etcd, &scene.policy);
    let (a, b) = (scene.stands("a"), scene.stands("b"));
    let beside = leader(&second.endpoint(), &format!("jobs={a}"));
    let old = scene.writing(a);
    scene.leaves("a");
    // If the other proxy ends its session before a proxy knows of the mark, the client gets PostgreSQL's 57P01.
    for mut ended in [old, beside] {
        let told = pretty(&ended.until_closed());
        assert!(told.contains("FATAL"), "{told}");
    }
    assert_eq!(scene.rows(), "0");
    for proxy in [&second, &scene.proxy] {
        leader(&proxy.endpoint(), &format!("jobs={b}")).ok("INSERT INTO jobs VALUES (2)");
    }
}

#[test]
fn a_reload_begins_and_ends_it() {
    let scene = Scene::start("[scope.jobs]\ntables = [\"*.jobs\"]\n");
    let a = scene.stands("a");
    let old = scene.writing(1);
    scene.policy.reload(&scene.proxy, POLICY);
    assert_ended(old);
    scene.reaches(a);
    // Another election, which already has a leader.
    let other = scene.etcd.stands("/elections/other", "x");
    let old = scene.writing(a);
    scene
        .policy
        .reload(&scene.proxy, &POLICY.replace("/jobs", "/other"));
    assert_ended(old);
    scene.reaches(other);
    scene.leaves("a");
    let b = scene.stands("b");
    assert_refused(
        &mut scene.plain(),
        &b.to_string(),
        "PF003",
        "has not won election \"/elections/other\"",
    );
    // No election at all: nothing is followed any more.
    scene
        .policy
        .reload(&scene.proxy, "[scope.jobs]\ntables = [\"*.jobs\"]\n");
    let mut wire = scene.writing(other + 1);
    scene.etcd.leaves("/elections/other", "x");
    scene.etcd.stands("/elections/other", "y");
    scene.plain().ok("SET fencing.token = 'default=1'");
    wire.ok("COMMIT");
    assert_eq!(scene.rows(), "1");
}

/// In observe mode the mark rises, and no session is ended or refused.
#[test]
fn what_is_observed_ends_nobody() {
    let observed = format!("{POLICY}mode = \"observe\"\n");
    let scene = Scene::start(&observed);
    let (a, b) = (scene.stands("a"), scene.stands("b"));
    let mut old = scene.writing(a);
    scene.plain().ok(&format!("SET fencing.token = 'jobs={b}'"));
    scene.plain().ok("SET fencing.token = 'jobs=lease'");
    scene.leaves("a");
    scene.reaches(b);
    old.ok("COMMIT");
    assert_eq!(scene.rows(), "1");
    // Enforcing makes up for the takeover.
    scene.policy.reload(&scene.proxy, POLICY);
    assert_ended(old);
}

/// Election numbers are valid only in the etcd that keeps the marks.
#[test]
fn another_store_is_refused() {
    let policy = PolicyFile::new("");
    let mut stage = Stage::governed(SETUP, &policy);
    policy.reload(&stage.proxy, POLICY);
    // The log writes it as JSON.
    let words =
        "has the number of an election of etcd, and this proxy keeps its marks in embedded:";
    let place = "policy.toml:3:29: ";
    let output = stage.proxy.output();
    assert!(
        output.contains(words)
            && output.contains(place)
            && output.contains("the old policy stays in force"),
        "{output}"
    );
    let flag = format!("--policy={}", policy.path().display());
    let check = stage
        .proxy
        .subcommand("check")
        .env("PGPALISADE_POLICY", policy.path())
        .output();
    let check = String::from_utf8_lossy(&check.unwrap().stdout).into_owned();
    assert_says(&check, "scope \"jobs\" has the number of an election");
    stage.proxy.terminate();
    let said = stage.proxy.try_restart(SOON).unwrap_err();
    assert!(said.contains(words), "{said}");
    // The file alone is valid.
    assert!(subcommand("check").arg(flag).status().unwrap().success());
    policy.write("");
    stage.proxy.restart();
}

/// With a pool, too, where a server connection is registered with it.
#[test]
fn a_number_is_asked_for_whoever_has_declared_it_before() {
    let scene = Scene::start(POLICY);
    let options = Options::new(&scene.postgres).policy(&scene.policy);
    let options = options.flag("--pool", "transaction");
    let proxy = Proxy::start_with(options.store(scene.etcd.authority()));
    let number = scene.stands("a");
    let value = format!("jobs={number}");
    let mut elected = leader(&proxy.endpoint(), &value);
    elected.ok("INSERT INTO jobs VALUES (1)");
    scene.leaves("a");
    let mut other = Wire::login(&proxy.endpoint(), &TRUSTED);
    assert_refused(&mut other, &number.to_string(), "PF001", "nobody leads");
    other.fails("INSERT INTO jobs VALUES (2)", "PF002");
    let mut login = Wire::open(&proxy.endpoint(), &[("fencing.token", &value)]);
    let told = pretty(&login.until_closed());
    assert_says(&told, "PF001");
    assert_says(&told, "nobody leads");
    // Until another wins, it is the mark.
    elected.ok("INSERT INTO jobs VALUES (3)");
}
