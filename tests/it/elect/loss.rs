//! Real and apparent losses of leadership.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::machine::{Signal, wait_until};
use pgpalisade_test_servers::programs::connect_by_environment;
use pgpalisade_test_servers::proxy::binary;
use pgpalisade_test_servers::stage::Stage;

use super::{Candidate, etcd_arguments, pause, resume, token_of, wait_for_terms, writer};

const LOST: &str = "lost etcd:/elections/jobs: ";

fn depose(etcd: &Etcd) {
    etcd.ctl(&["del", "--prefix", "/elections/jobs"]);
}

/// The candidates renew the lease, and query the election, at another member.
#[test]
fn one_member_that_hangs_deposes_nobody() {
    let (stage, etcd) = (Stage::start(), Etcd::start(3));
    let (proxy, urls) = (stage.proxy.endpoint(), etcd.urls().join(","));
    // A candidate relies on its lease for 8 s, and renews it after 2 s. etcd's own election takes 2 s, and as long
    // again if its members vote for themselves.
    let arguments = etcd_arguments(&urls, &["--ttl", "12s"]);
    let leader = Candidate::start(&arguments, "sleep 60", &proxy);
    token_of(&leader);
    let next = Candidate::start(&arguments, "sleep 60", &proxy);
    next.wait_for("waiting for");
    for member in 0..3 {
        etcd.pause(member);
        // Longer than a candidate waits that cannot renew its lease. But shorter than the rest of a lease when the
        // member is stopped. A member that wakes and still considers itself the leader revokes leases that seem
        // expired (<https://github.com/etcd-io/etcd/issues/15247>).
        std::thread::sleep(Duration::from_millis(8_200));
        etcd.resume(member);
        etcd.wait_until_ready();
    }
    assert!(!leader.output().contains(LOST), "{}", leader.output());
    assert!(!next.output().contains("leads"), "{}", next.output());
    depose(&etcd);
    leader.wait_for(LOST);
}

/// A deposed leader reports that, whatever request it was about to send.
#[test]
fn who_is_deposed_says_so() {
    let stage = Stage::start();
    let arguments = ["jobs", "--with", "lease", "--ttl", "3s"];
    for round in 1..=4_u64 {
        let deposed = Candidate::start(&arguments, "sleep 60", &stage.proxy.endpoint());
        token_of(&deposed);
        // When resumed, it learns of its end and is due to renew the lease at the same time.
        pause(&deposed);
        drop(stage.leader(&format!("jobs={}", round * 1000)));
        std::thread::sleep(Duration::from_millis(1_100));
        resume(&deposed);
        deposed.wait_for("lost lease: ");
        let output = deposed.output();
        assert!(
            output.contains("is stale") && !output.contains("closed"),
            "{output}"
        );
    }
}

/// Without its proxy a lease ends after 15 s, whatever `--ttl` is.
#[test]
fn a_leader_relies_on_a_lease_no_longer_than_its_proxy_keeps_it() {
    let stage = Stage::start();
    let arguments = ["jobs", "--with", "lease", "--ttl", "60s"];
    let leader = Candidate::start(&arguments, "sleep 60", &stage.proxy.endpoint());
    token_of(&leader);
    stage.proxy.pause();
    leader.wait_for("lost lease: the lease was not renewed in time");
    stage.proxy.resume();
}

#[test]
fn a_key_that_was_deleted_ends_its_term() {
    let (stage, etcd) = (super::governed(), Etcd::start(1));
    let (proxy, urls) = (stage.proxy.endpoint(), etcd.urls().join(","));
    let arguments = etcd_arguments(&urls, &["--ttl", "30s"]);
    let leader = Candidate::start(&arguments, &writer(), &proxy);
    let token = token_of(&leader);
    depose(&etcd);
    leader.wait_for("its key in etcd was deleted");
    leader.wait_for("told to end");
    wait_for_terms(&leader, 2);
    assert_ne!(token_of(&leader), token);
    // A waiting candidate must not lead without a key.
    let next = Candidate::start(&arguments, &writer(), &proxy);
    next.wait_for("waiting for");
    let keys = || etcd.ctl(&["get", "--prefix", "--keys-only", "/elections/jobs"]);
    wait_until("its candidacy", || keys().split_whitespace().count() == 2);
    let keys = keys();
    etcd.ctl(&["del", keys.split_whitespace().last().unwrap()]);
    next.wait_for("the candidacy was lost: its key in etcd was deleted");
    assert!(!next.output().contains("leads"), "{}", next.output());
}

#[test]
fn a_signal_that_came_while_it_waited_is_not_for_the_command() {
    let (stage, etcd) = (Stage::start(), Etcd::start(1));
    let (proxy, urls) = (stage.proxy.endpoint(), etcd.urls().join(","));
    let arguments = etcd_arguments(&urls, &[]);
    let mut leader = Candidate::start(&arguments, "sleep 60", &proxy);
    token_of(&leader);
    let mut next = Candidate::start(&arguments, "sleep 0.3; echo goes on", &proxy);
    let mut hung_up = Candidate::start(&arguments, "echo never", &proxy);
    for waits in [&next, &hung_up] {
        waits.wait_for("waiting for");
    }
    next.process.signal(Signal::USR1);
    hung_up.process.signal(Signal::HUP);
    assert_eq!(hung_up.exit_code(), 129);
    leader.process.signal(Signal::TERM);
    assert_eq!(leader.exit_code(), 143);
    assert_eq!(next.exit_code(), 0, "{}", next.output());
    next.wait_for("goes on");
}

/// As `nohup` starts it.
#[test]
fn one_that_is_to_outlive_a_terminal_does() {
    let (stage, etcd) = (Stage::start(), Etcd::start(1));
    let (proxy, urls) = (stage.proxy.endpoint(), etcd.urls().join(","));
    let leader = Candidate::start(&etcd_arguments(&urls, &[]), "sleep 60", &proxy);
    token_of(&leader);
    let elect = format!(
        "trap '' HUP; exec {} elect jobs --with etcd:/elections/jobs --etcd {urls} -- echo leads at last",
        binary().display()
    );
    let mut command = Command::new("sh");
    connect_by_environment(&mut command, &proxy);
    command.args(["-c", &elect]);
    let mut outlives = Candidate::spawn(command);
    outlives.wait_for("waiting for");
    outlives.process.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    drop(leader);
    assert_eq!(outlives.exit_code(), 0, "{}", outlives.output());
    outlives.wait_for("leads at last");
}

/// As a daemon starts it that ignores SIGCHLD.
#[test]
fn a_code_is_given_where_ends_of_children_were_ignored() {
    let (stage, etcd) = (Stage::start(), Etcd::start(1));
    let elect = format!(
        "trap '' CHLD; exec {} elect jobs --with etcd:/elections/jobs --etcd {} -- sh -c 'exit 7'",
        binary().display(),
        etcd.urls().join(",")
    );
    let mut command = Command::new("bash");
    connect_by_environment(&mut command, &stage.proxy.endpoint());
    command.args(["-c", &elect]);
    let mut leader = Candidate::spawn(command);
    assert_eq!(leader.exit_code(), 7, "{}", leader.output());
}

/// In its own process group it would be stopped when it reads, and would lead for ever.
#[test]
fn a_command_reads_no_terminal() {
    let (stage, etcd) = (Stage::start(), Etcd::start(1));
    let elect = format!(
        "{} elect jobs --with etcd:/elections/jobs --etcd {} -- sh -c 'read line; echo read: $?'",
        binary().display(),
        etcd.urls().join(",")
    );
    let mut command = Command::new("script");
    connect_by_environment(&mut command, &stage.proxy.endpoint());
    command.args(["-qec", &elect, "/dev/null"]);
    let mut leader = Candidate::spawn(command);
    assert_eq!(leader.exit_code(), 0, "{}", leader.output());
    leader.wait_for("read: 1");
}

/// Everything that the command has started gets the grace period, and no more.
#[test]
fn what_the_command_has_started_is_ended_too() {
    let (stage, etcd) = (Stage::start(), Etcd::start(1));
    let (proxy, urls) = (stage.proxy.endpoint(), etcd.urls().join(","));
    let arguments = etcd_arguments(&urls, &["--once", "--grace", "1s"]);
    let script = "sh -c 'trap : TERM; echo works as $$; while :; do sleep 0.1; done' & wait";
    let mut leader = Candidate::start(&arguments, script, &proxy);
    leader.wait_for("works as ");
    depose(&etcd);
    assert_eq!(leader.exit_code(), 75, "{}", leader.output());
    let output = leader.output();
    let worker = output
        .lines()
        .find_map(|line| line.strip_prefix("works as "));
    let worker = format!("/proc/{}/cmdline", worker.unwrap());
    let command = || std::fs::read(Path::new(&worker)).unwrap_or_default();
    wait_until("the worker's end", || command().is_empty());
}

#[test]
fn one_that_was_told_to_end_begins_no_other_term() {
    let (stage, etcd) = (Stage::start(), Etcd::start(1));
    let (proxy, urls) = (stage.proxy.endpoint(), etcd.urls().join(","));
    let arguments = etcd_arguments(&urls, &["--grace", "500ms"]);
    let script = "trap 'echo hears it' TERM; echo runs as $$; while :; do sleep 0.1; done";
    let mut leader = Candidate::start(&arguments, script, &proxy);
    leader.wait_for("runs as");
    leader.process.signal(Signal::TERM);
    leader.wait_for("hears it");
    depose(&etcd);
    assert_eq!(leader.exit_code(), 143, "{}", leader.output());
    assert_eq!(leader.groups().len(), 1);
}

/// A refused command may know of the loss before this process does.
#[test]
fn a_command_that_fails_behind_a_loss_is_one_that_has_lost() {
    let (stage, etcd) = (Stage::start(), Etcd::start(1));
    let (proxy, urls) = (stage.proxy.endpoint(), etcd.urls().join(","));
    let arguments = etcd_arguments(&urls, &["--once"]);
    let run = |script: &str| {
        let mut leader = Candidate::start(&arguments, script, &proxy);
        (leader.exit_code(), leader.output())
    };
    let (code, output) = run("exit 3");
    assert_eq!(code, 3, "{output}");
    let dir = tempfile::tempdir().unwrap();
    let deposed = dir.path().join("deposed");
    let script = format!("while ! [ -e {} ]; do :; done; exit 3", deposed.display());
    let mut leader = Candidate::start(&arguments, &script, &proxy);
    token_of(&leader);
    leader.process.signal(Signal::STOP);
    depose(&etcd);
    std::fs::write(&deposed, "").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    leader.process.signal(Signal::CONT);
    assert_eq!(leader.exit_code(), 75, "{}", leader.output());
}
