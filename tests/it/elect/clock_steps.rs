//! Steps of the time of day, for candidates and their proxy, while one of them leads: leadership does not change.

use std::time::Duration;

use pgpalisade_test_servers::clock::{Clock, seconds_now};
use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::machine::wait_for;
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir};
use pgpalisade_test_servers::programs::connect_by_environment;
use pgpalisade_test_servers::proxy::{Options, Proxy, subcommand};

use super::{Candidate, token_of};

const HOUR: i64 = 3_600;
/// Longer than each lock lives without its holder.
const TTL_AND_MORE: Duration = Duration::from_secs(6);

/// Prints the time of day repeatedly.
const TELLS_THE_TIME: &str = "echo runs as $$; while :; do date +time=%s; sleep 0.1; done";

fn candidate(with: &[&str], proxy: &Proxy, clock: &Clock) -> Candidate {
    let mut command = subcommand("elect");
    connect_by_environment(&mut command, &proxy.endpoint());
    command
        .args(["jobs", "--ttl", "5s"])
        .args(with)
        .args(["--", "sh", "-c", TELLS_THE_TIME])
        .envs(clock.environment());
    Candidate::spawn(command)
}

/// Waits until the command has seen the clock this far from the machine's.
#[track_caller]
fn assert_steps(leader: &Candidate, ahead: i64) {
    wait_for("a step of the clock", || {
        let output = leader.output();
        let last = output
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("time="))?;
        let seen = last.parse::<i64>().ok()? - i64::try_from(seconds_now()).unwrap();
        ((seen - ahead).abs() < 60).then_some(())
    });
}

fn steps_change_nothing(with: &[&str]) {
    let dir = scratch_dir();
    let clock = Clock::of(dir.path());
    clock.set(0);
    let postgres = Postgres::start();
    let mut options = Options::new(&postgres);
    for (name, value) in clock.environment() {
        options = options.variable(name, &value);
    }
    let proxy = Proxy::start_with(options);
    let leader = candidate(with, &proxy, &clock);
    let token = token_of(&leader);
    let next = candidate(with, &proxy, &clock);
    next.wait_for("waiting for");
    for ahead in [HOUR, -HOUR] {
        clock.set(ahead);
        assert_steps(&leader, ahead);
        std::thread::sleep(TTL_AND_MORE);
    }
    assert!(!leader.output().contains("lost "), "{}", leader.output());
    assert!(!next.output().contains("leads"), "{}", next.output());
    drop(leader);
    assert!(token_of(&next).parse::<u64>().unwrap() > token.parse().unwrap());
}

#[test]
fn with_a_lease() {
    steps_change_nothing(&["--with", "lease"]);
}

#[test]
fn with_etcd() {
    let etcd = Etcd::start(1);
    let urls = etcd.urls().join(",");
    steps_change_nothing(&["--with", "etcd:/elections/jobs", "--etcd", &urls]);
}

#[test]
fn with_an_advisory_lock() {
    steps_change_nothing(&["--with", "advisory-lock:4711"]);
}
