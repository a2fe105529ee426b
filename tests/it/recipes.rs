//! The programs in `examples/`, unchanged, with the real election services: a leader that slept is refused.

mod consul;
mod kubernetes;
mod redis;
mod zookeeper;

use std::process::Command;
use std::time::Duration;

use pgpalisade_harness::child::{Farewell, Running};
use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::machine::{
    PATIENCE, Signal, assert_says, pause, repository, signal, wait_for,
};
use pgpalisade_test_servers::programs::connect_by_environment;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::Endpoint;
use tempfile::TempDir;

use crate::interpreters::{node, node_packages, python};

/// Elections without an orderly end: a leader's lock must expire.
const KILL: Farewell = &[(Signal::KILL, Duration::from_secs(10))];

/// A server, a proxy, and the page's table that the examples write into.
fn stage() -> Stage {
    let page = std::fs::read_to_string(repository().join("docs/elections.md")).unwrap();
    let mut lines = page.lines();
    let table = lines.by_ref().find(|l| l.starts_with("CREATE TABLE jobs"));
    let mut sql = table.unwrap().to_owned();
    while !sql.ends_with(';') {
        sql.push_str(lines.next().unwrap());
    }
    // Records the order of the rows, and their writer.
    Stage::with(&format!(
        "{sql} ALTER TABLE jobs ADD written bigserial, \
         ADD worker text DEFAULT current_setting('application_name')"
    ))
}

/// A program of `examples/` that campaigns.
struct Candidate {
    name: &'static str,
    process: Running,
    dir: TempDir,
}

impl Candidate {
    fn start(name: &'static str, program: &str, arguments: &[&str], proxy: &Endpoint) -> Self {
        let program = repository().join("examples").join(program);
        let mut command = match program.extension() {
            Some(extension) if extension == "js" => {
                node(&node_packages("examples", "recipes"), &program)
            }
            _ => python(&program),
        };
        connect_by_environment(&mut command, proxy);
        command.args(arguments).env("PGAPPNAME", name);
        Self::spawn(name, command)
    }

    fn spawn(name: &'static str, mut command: Command) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let process = Running::spawn(&mut command, dir.path().join("log"), KILL).unwrap();
        Self { name, process, dir }
    }

    #[track_caller]
    fn says(&self, words: &str) -> String {
        wait_for(words, || {
            let output = self.process.output();
            let (_, behind) = output.split_once(words)?;
            Some(behind.split_once('\n')?.0.trim().to_owned())
        })
    }

    /// Its token, once it leads.
    #[track_caller]
    fn token(&self) -> u64 {
        self.says("leads with token").parse().unwrap()
    }

    /// Number of its rows, once there are two.
    #[track_caller]
    fn rows(&self, stage: &Stage) -> u64 {
        let count = format!("SELECT count(*) FROM jobs WHERE worker = '{}'", self.name);
        wait_for("rows", || {
            let rows = stage.value(&count).parse().unwrap();
            (rows > 1).then_some(rows)
        })
    }

    /// Stops it in the middle of a transaction, after it has read the reply to its INSERT. If libpq reads a FATAL
    /// together with an earlier reply, it treats it as a notice, and the program only sees a closed connection.
    fn pause(&self, stage: &Stage) {
        let state = format!(
            "SELECT true FROM pg_stat_activity \
             WHERE application_name = '{}' AND state = 'idle in transaction' \
             AND query ILIKE 'INSERT%' AND state_change < clock_timestamp() - interval '50 ms'",
            self.name
        );
        let is_inside = || stage.value(&state) == "t";
        wait_for("a transaction to stop in", || {
            is_inside().then(|| pause(self.process.pid()))?;
            if !is_inside() {
                self.resume();
            }
            is_inside().then_some(())
        });
    }

    fn resume(&self) {
        signal(self.process.pid(), Signal::CONT);
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("--- {}\n{}", self.name, self.process.output());
        }
        let _removed_with_it = &self.dir;
    }
}

/// Stops the first one in a transaction until the second one has taken over. After resuming the first is refused.
/// Returns their tokens.
fn who_sleeps_is_refused(stage: &Stage, start: impl Fn(&'static str) -> Candidate) -> [u64; 2] {
    let first = start("first");
    let old = first.token();
    first.rows(stage);
    first.pause(stage);
    let second = start("second");
    let new = second.token();
    assert!(old < new, "{old}, then {new}");
    let before = first.rows(stage);
    second.rows(stage);
    first.resume();
    first.says("PF001");
    assert_eq!(first.rows(stage), before, "a deposed leader has written");
    assert_only_allowed_rows(stage);
    [old, new]
}

/// Asserts that each row was written under the highest token of its time.
fn assert_only_allowed_rows(stage: &Stage) {
    let late =
        "SELECT count(*) FROM jobs a JOIN jobs b ON a.written < b.written AND a.token > b.token";
    assert_eq!(stage.value(late), "0");
}

#[test]
fn a_row_with_an_expiry() {
    let stage = stage();
    let direct = stage.postgres.admin_dsn();
    let start = |name| Candidate::start(name, "row_lease.py", &[&direct], &stage.proxy.endpoint());
    assert_eq!(who_sleeps_is_refused(&stage, start), [1, 2]);
}

#[test]
fn a_lock_in_etcd() {
    let (stage, etcd) = (stage(), Etcd::start(1));
    let [url] = &etcd.urls()[..] else {
        panic!("one member");
    };
    let start = |name| Candidate::start(name, "etcd_lock.py", &[url], &stage.proxy.endpoint());
    who_sleeps_is_refused(&stage, start);
}

/// PostgreSQL itself accepts any token, and compares none. Each program connects in its own way, or the scheduler's.
#[test]
fn past_the_proxy_no_program_leads() {
    let (stage, etcd) = (stage(), Etcd::start(1));
    let direct = stage.postgres.admin_dsn();
    let urls = etcd.urls().join(",");
    for (program, arguments) in [
        ("etcd_lock.py", &[&*urls][..]),
        ("row_lease.py", &[&direct]),
        ("apscheduler_pool.py", &[]),
        ("worker.js", &[]),
    ] {
        let mut lost = Candidate::start("lost", program, arguments, &stage.postgres.tcp());
        let ended = lost.process.wait(PATIENCE);
        let said = lost.process.output();
        assert!(ended.is_some_and(|ended| !ended.success()), "{said}");
        assert_says(&said, "unrecognized configuration parameter");
        assert!(!said.contains("leads"), "{said}");
    }
}

#[test]
fn a_scheduler_with_a_pool() {
    let stage = stage();
    let start = |name| Candidate::start(name, "apscheduler_pool.py", &[], &stage.proxy.endpoint());
    assert_eq!(who_sleeps_is_refused(&stage, start), [1, 2]);
}

#[test]
fn a_worker_of_node() {
    let stage = stage();
    let start = |name| Candidate::start(name, "worker.js", &[], &stage.proxy.endpoint());
    assert_eq!(who_sleeps_is_refused(&stage, start), [1, 2]);
}
