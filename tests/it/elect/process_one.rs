//! `elect` as process 1, as in a container: orphans become its children, and no signal ends it by default.

use std::process::Command;

use pgpalisade_test_servers::kubernetes::Kubernetes;
use pgpalisade_test_servers::machine::{Signal, signal, wait_for};
use pgpalisade_test_servers::programs::connect_by_environment;
use pgpalisade_test_servers::proxy::binary;
use pgpalisade_test_servers::stage::Stage;

use super::{Candidate, kubernetes};

/// In its own PID namespace. The script's pids are valid only there.
fn start(arguments: &[&str], script: &str, stage: &Stage) -> Candidate {
    let mut command = Command::new("unshare");
    connect_by_environment(&mut command, &stage.proxy.endpoint());
    command
        .args(["--user", "--map-root-user", "--pid", "--fork"])
        .args(["--mount-proc", "--kill-child"])
        .arg(binary())
        .arg("elect")
        .args(arguments)
        .args(["--", "sh", "-c", script]);
    Candidate::spawn(command)
}

#[test]
fn orphans_are_collected() {
    let stage = Stage::start();
    let script = "for i in 1 2 3 4 5; do (sleep 0.01 &); done; sleep 1
        echo zombies: $(grep -l '^State:.*Z' /proc/[0-9]*/status | wc -l) of process $PPID; exit 7";
    let mut leader = start(&["jobs", "--with", "lease"], script, &stage);
    assert_eq!(leader.exit_code(), 7, "{}", leader.output());
    leader.wait_for("zombies: 0 of process 1");
}

/// An ended orphan that was not reaped would count as alive.
#[test]
fn an_orphan_that_has_ended_holds_up_nobody() {
    let (stage, kubernetes) = (Stage::start(), Kubernetes::start());
    let url = kubernetes::url(&kubernetes);
    let arguments = kubernetes::arguments(&url, &["--ttl", "3s", "--once"]);
    let script = "(sleep 60 &); echo is ready; exec sleep 60";
    let mut leader = start(&arguments, script, &stage);
    leader.wait_for("is ready");
    kubernetes.delete("jobs");
    assert_eq!(leader.exit_code(), 75, "{}", leader.output());
    let output = leader.output();
    assert!(!output.contains("is killed"), "{output}");
}

#[test]
fn signals_are_passed_on() {
    let stage = Stage::start();
    let script = "trap 'echo told to end; exit 9' TERM; echo is ready; while :; do sleep 0.1; done";
    let mut leader = start(&["jobs", "--with", "lease"], script, &stage);
    leader.wait_for("is ready");
    let unshare = leader.process.pid();
    let children = format!("/proc/{unshare}/task/{unshare}/children");
    let elect = wait_for("its process", || {
        let children = std::fs::read_to_string(&children).ok()?;
        children.split_whitespace().next()?.parse().ok()
    });
    signal(elect, Signal::TERM);
    assert_eq!(leader.exit_code(), 9, "{}", leader.output());
    leader.wait_for("told to end");
}
