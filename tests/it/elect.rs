//! `pgpalisade elect`: a command that runs while its process leads, under the token of its term.

mod clock_steps;
mod environment;
mod kubernetes;
mod loss;
mod no_wait;
mod process_one;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use pgpalisade_harness::child::{Running, TERM};
use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::kubernetes::Kubernetes;
use pgpalisade_test_servers::machine::{
    PATIENCE, Signal, assert_within, repository, signal, wait_until,
};
use pgpalisade_test_servers::postgres::bin;
use pgpalisade_test_servers::programs::connect_by_environment;
use pgpalisade_test_servers::proxy::subcommand;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Endpoint, Wire, trusted};
use tempfile::TempDir;

const SETUP: &str = "CREATE TABLE jobs (token int)";

struct Candidate {
    process: Running,
    dir: TempDir,
}

impl Candidate {
    /// Starts a candidate with these arguments, and a shell script as its command.
    fn start(arguments: &[&str], script: &str, proxy: &Endpoint) -> Self {
        let mut command = subcommand("elect");
        connect_by_environment(&mut command, proxy);
        command.args(arguments).args(["--", "sh", "-c", script]);
        Self::spawn(command)
    }

    /// Starts a candidate by this command.
    fn spawn(mut command: Command) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let process = Running::spawn(&mut command, dir.path().join("log"), TERM).unwrap();
        Self { process, dir }
    }

    fn output(&self) -> String {
        self.process.output()
    }

    #[track_caller]
    fn wait_for(&self, words: &str) {
        wait_until(words, || self.output().contains(words));
    }

    /// Process groups of its commands, one for each term.
    fn groups(&self) -> Vec<u32> {
        let output = self.output();
        let told = output
            .lines()
            .filter_map(|line| line.strip_prefix("runs as "));
        told.map(|pid| pid.parse().unwrap()).collect()
    }

    #[track_caller]
    fn exit_code(&mut self) -> i32 {
        let status: Option<ExitStatus> = self.process.wait(PATIENCE);
        let output = self.output();
        status
            .and_then(|status| status.code())
            .unwrap_or_else(|| panic!("it goes on: {output}"))
    }
}

impl Drop for Candidate {
    /// A command outlives a killed candidate.
    fn drop(&mut self) {
        let _ended = self.process.end();
        if std::thread::panicking() {
            println!("--- a candidate\n{}", self.output());
        }
        for group in self.groups() {
            let group = rustix::process::Pid::from_raw(i32::try_from(group).unwrap());
            let _gone_already = rustix::process::kill_process_group(group.unwrap(), Signal::KILL);
        }
        let _removed_with_it = &self.dir;
    }
}

/// A script that writes rows with its token repeatedly, reports failures, and ends when told.
fn writer() -> String {
    let psql = bin("psql").display().to_string();
    format!(
        "trap 'echo told to end; exit 0' TERM; echo runs as $$
        while :; do {psql} -qc \"INSERT INTO jobs VALUES ($FENCING_TOKEN)\"; sleep 0.05; done"
    )
}

fn etcd_arguments<'a>(etcd: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let with = ["jobs", "--with", "etcd:/elections/jobs", "--etcd", etcd];
    [&with, more].concat()
}

fn rows_of(stage: &Stage, token: &str) -> u64 {
    let count = format!("SELECT count(*) FROM jobs WHERE token = {token}");
    stage.value(&count).parse().unwrap()
}

fn token_of(candidate: &Candidate) -> String {
    let leads = "leads scope \"jobs\" with fencing token ";
    candidate.wait_for(leads);
    let output = candidate.output();
    let (_, behind) = output.rsplit_once(leads).unwrap();
    behind.lines().next().unwrap().to_owned()
}

fn pause(candidate: &Candidate) {
    signal(candidate.process.pid(), Signal::STOP);
}

fn resume(candidate: &Candidate) {
    signal(candidate.process.pid(), Signal::CONT);
}

#[track_caller]
fn wait_for_terms(candidate: &Candidate, count: usize) {
    wait_until("another term", || candidate.groups().len() == count);
}

/// Asserts that the leader of the first token is refused, and only that of the second one writes.
#[track_caller]
fn assert_fenced(stage: &Stage, deposed: &Candidate, [old, new]: [&str; 2]) {
    deposed.wait_for("PF001");
    let before = rows_of(stage, old);
    wait_until("rows of the next", || rows_of(stage, new) > 1);
    assert_eq!(rows_of(stage, old), before, "a deposed leader has written");
}

fn governed() -> Stage {
    let policy =
        pgpalisade_test_servers::policy::PolicyFile::new("[scope.jobs]\ntables = [\"*.jobs\"]\n");
    Stage::governed(SETUP, &policy)
}

/// The command goes on writing, and the proxy refuses its stale token.
#[test]
fn a_leader_that_slept_is_fenced_and_told_to_end() {
    let (etcd, kubernetes) = (Etcd::start(1), Kubernetes::start());
    let (urls, api) = (etcd.urls().join(","), kubernetes::url(&kubernetes));
    let locks = [
        vec!["jobs", "--with", "lease"],
        etcd_arguments(&urls, &[]),
        kubernetes::arguments(&api, &[]),
    ];
    // At once: each sleeps as long.
    std::thread::scope(|scope| {
        for lock in &locks {
            scope.spawn(|| sleeps_and_is_fenced(lock));
        }
    });
}

fn sleeps_and_is_fenced(lock: &[&str]) {
    let (stage, with) = (governed(), lock[2]);
    let arguments = [lock, &["--ttl", "3s"]].concat();
    let candidate = || Candidate::start(&arguments, &writer(), &stage.proxy.endpoint());
    let lost = format!("lost {with}: ");
    let first = candidate();
    let token = token_of(&first);
    wait_until("its rows", || rows_of(&stage, &token) > 1);
    let mut second = candidate();
    second.wait_for(&format!("waiting for {with}"));
    // Longer than its lock lives: it is renewed, and whoever waits asks again.
    std::thread::sleep(Duration::from_secs(7));
    assert!(!first.output().contains(&lost), "{}", first.output());
    assert!(!second.output().contains("leads"), "{}", second.output());
    // Its command goes on: nothing stops it, nor needs to until the next one leads.
    pause(&first);
    let later = token_of(&second);
    assert!(later.parse::<u64>().unwrap() > token.parse().unwrap());
    assert_fenced(&stage, &first, [&token, &later]);
    resume(&first);
    first.wait_for(&lost);
    first.wait_for("told to end");
    wait_until("another candidacy", || {
        first.output().matches("waiting for").count() == 2
    });
    // What is given back is free at once, though its session may live a moment longer.
    second.process.signal(Signal::TERM);
    assert_eq!(second.exit_code(), 0, "{}", second.output());
    wait_for_terms(&first, 2);
    assert!(token_of(&first).parse::<u64>().unwrap() > later.parse().unwrap());
    assert!(!first.output().contains("is killed"), "{with}");
}

#[test]
fn the_next_one_leads_as_soon_as_the_command_has_ended() {
    let (stage, etcd) = (governed(), Etcd::start(1));
    let (proxy, urls) = (stage.proxy.endpoint(), etcd.urls().join(","));
    // Waiting for the leases would take half a minute.
    let arguments = etcd_arguments(&urls, &["--ttl", "30s"]);
    let mut first = Candidate::start(&arguments, &writer(), &proxy);
    token_of(&first);
    let mut gives_up = Candidate::start(&arguments, "echo never", &proxy);
    gives_up.wait_for("waiting for");
    let candidacies = || etcd.ctl(&["get", "--prefix", "--keys-only", "/elections/jobs"]);
    wait_until("its candidacy", || {
        candidacies().split_whitespace().count() == 2
    });
    gives_up.process.signal(Signal::TERM);
    assert_eq!(gives_up.exit_code(), 143);
    let second = Candidate::start(&arguments, &writer(), &proxy);
    second.wait_for("waiting for");
    first.process.signal(Signal::TERM);
    assert_eq!(first.exit_code(), 0, "{}", first.output());
    assert!(first.output().contains("told to end"));
    let begun = std::time::Instant::now();
    token_of(&second);
    assert_within(begun, Duration::from_secs(10));
    assert!(!gives_up.output().contains("never"));
}

#[test]
fn an_advisory_lock_gives_the_next_token() {
    let stage = governed();
    let proxy = stage.proxy.endpoint();
    let arguments = ["jobs", "--with", "advisory-lock:42"];
    let mut first = Candidate::start(&arguments, &writer(), &proxy);
    assert_eq!(token_of(&first), "1");
    wait_until("its rows", || rows_of(&stage, "1") > 1);
    let second = Candidate::start(&arguments, &writer(), &proxy);
    second.wait_for("waiting for advisory-lock:42");
    // Its session ends with it; its command goes on.
    first.process.signal(Signal::KILL);
    assert_eq!(token_of(&second), "2");
    assert_fenced(&stage, &first, ["1", "2"]);
    // Any declaration of a higher token deposes the lock's holder too.
    let leader = trusted(&[("fencing.token", "jobs=9")]);
    let _leader = Wire::login(&proxy, &leader);
    second.wait_for("lost advisory-lock:42: PF001: ");
    second.wait_for("told to end");
    wait_for_terms(&second, 2);
    assert_eq!(token_of(&second), "10");
}

#[test]
fn the_command_is_told_and_its_code_is_given() {
    let (stage, etcd) = (Stage::start(), Etcd::start(1));
    let (proxy, urls) = (stage.proxy.endpoint(), etcd.urls().join(","));
    let run = |arguments: &[&str], script: &str| {
        let mut candidate = Candidate::start(arguments, script, &proxy);
        let code = candidate.exit_code();
        (code, candidate.output())
    };
    let arguments = etcd_arguments(&urls, &[]);
    let told = "echo \"$FENCING_SCOPE:$FENCING_TOKEN:$PGOPTIONS\"; exit 7";
    let (code, output) = run(&arguments, told);
    assert_eq!(code, 7, "{output}");
    let line = output
        .lines()
        .find(|line| line.starts_with("jobs:"))
        .unwrap();
    let token = line.split(':').nth(1).unwrap();
    assert_eq!(line, format!("jobs:{token}:-c fencing.token=jobs={token}"));
    // Only the end of the lease comes after the candidacy.
    assert_eq!(token.parse::<i64>().unwrap(), etcd.revision(&[0]) - 1);
    let (code, output) = run(&arguments, "kill -KILL $$");
    assert_eq!(code, 137, "{output}");
    let mut command = subcommand("elect");
    connect_by_environment(&mut command, &proxy);
    let no_program = command
        .args(&arguments)
        .args(["--", "/nowhere/program"])
        .output()
        .unwrap();
    assert_eq!(no_program.status.code(), Some(127), "{no_program:?}");
}

#[test]
fn whoever_cannot_renew_its_lease_steps_down() {
    let stage = governed();
    let mut etcd = Etcd::start(1);
    let (proxy, urls) = (stage.proxy.endpoint(), etcd.urls().join(","));
    let deaf = "trap '' TERM; echo runs as $$; while :; do sleep 0.1; done";
    let arguments = etcd_arguments(&urls, &["--ttl", "3s", "--grace", "500ms", "--once"]);
    let mut candidate = Candidate::start(&arguments, deaf, &proxy);
    token_of(&candidate);
    candidate.wait_for("runs as");
    etcd.kill(0);
    assert_eq!(candidate.exit_code(), 75, "{}", candidate.output());
    for words in [
        "the lease was not renewed in time",
        "has 500ms to end",
        "is killed",
    ] {
        candidate.wait_for(words);
    }
    // Without having led nothing was lost: it retries until it leads.
    let waits = Candidate::start(&arguments, "echo leads at last", &proxy);
    waits.wait_for("trying again in 1s");
    etcd.restart(0);
    waits.wait_for("leads at last");
}

/// The command of the page, word for word.
#[test]
fn a_lock_of_etcdctl_has_a_number() {
    let (stage, etcd) = (Stage::start(), Etcd::start(1));
    let page = std::fs::read_to_string(repository().join("docs/elections.md")).unwrap();
    let line = page
        .lines()
        .find(|line| line.starts_with("etcdctl lock "))
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("scheduler");
    let psql = bin("psql").display().to_string();
    let script = format!("#!/bin/sh\necho $ETCD_LOCK_REV; {psql} -XAtc 'SHOW fencing.token'\n");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("sh");
    connect_by_environment(&mut command, &stage.proxy.endpoint());
    command.args(["-c", line]).current_dir(dir.path());
    command
        .env("ETCDCTL_API", "3")
        .env("ETCDCTL_ENDPOINTS", etcd.urls().join(","));
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let [revision, token] = told.lines().collect::<Vec<_>>()[..] else {
        panic!("{output:?}");
    };
    assert_eq!(revision, token);
    assert!(token.parse::<u64>().unwrap() > 1, "{token}");
}

#[test]
fn what_does_not_fit_is_said() {
    let said = |arguments: &[&str]| {
        let mut command = subcommand("elect");
        let output = command.env_remove("PGHOST").args(arguments).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let command_line = ["--", "true"];
    for row in [
        "jobs --with etcd:/a => --with etcd:KEY needs etcd's address",
        "jobs --with etcd:/a --etcd http://h => --proxied names no host, and PGHOST is not set",
        "jobs --with kubernetes:default/jobs => this is not a pod",
        "jobs --with lease --kubernetes http://h => --kubernetes is for --with kubernetes:NAMESPACE/NAME",
        "jobs --with advisory-lock:x => advisory-lock:42",
        "jobs --with redis:x => write lease, etcd:KEY, kubernetes:NAMESPACE/NAME or advisory-lock:NUMBER",
        "jobs --with advisory-lock:1 --etcd http://h => leave it out",
        "jobs --with advisory-lock:1 --proxied host=a,b_password=hunter2 => --proxied",
        "jobs --with etcd:/a --etcd http://h --ttl 1s => from 3s to 1h",
        "no_scope --with advisory-lock:1 => no scope",
    ] {
        let (arguments, words) = row.split_once(" => ").unwrap();
        // A `_` is a space within an argument.
        let arguments: Vec<_> = arguments
            .split(' ')
            .map(|word| word.replace('_', " "))
            .collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let said = said(&[&arguments[..], &command_line].concat());
        assert!(
            said.contains(words) && !said.contains("hunter2"),
            "{arguments:?}: {said}"
        );
    }
    assert!(said(&["jobs", "--with", "advisory-lock:1"]).contains("COMMAND"));
    let mut command = subcommand("elect");
    command.args(["jobs", "--with", "advisory-lock:1", "--proxied", "host=h"]);
    command
        .args(command_line)
        .env("PGOPTIONS", "-c fencing.token=billing=7");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("remove it"));
}
