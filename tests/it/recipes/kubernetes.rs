//! Kubernetes: a Lease to take the next number under; and why `leaseTransitions` is a bad token.

use pgpalisade_test_servers::kubernetes::Kubernetes;
use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::programs::connect_by_environment;
use pgpalisade_test_servers::stage::Stage;

use super::{Candidate, assert_only_allowed_rows, stage, who_sleeps_is_refused};
use crate::interpreters::python;

/// Starts a candidate with this identity, which takes its token this way.
fn start_candidate(
    kubernetes: &Kubernetes,
    name: &'static str,
    arguments: [&str; 2],
    stage: &Stage,
) -> Candidate {
    let mut command = python(&repository().join("examples/kubernetes_lease.py"));
    connect_by_environment(&mut command, &stage.proxy.endpoint());
    command
        .args(arguments)
        .env("PGAPPNAME", name)
        .env("KUBECONFIG", kubernetes.config());
    Candidate::spawn(name, command)
}

#[test]
fn a_lease_of_kubernetes_takes_the_next_number() {
    let (stage, kubernetes) = (stage(), Kubernetes::start());
    let start = |name| start_candidate(&kubernetes, name, [name, "take"], &stage);
    assert_eq!(who_sleeps_is_refused(&stage, start), [1, 2]);
    // Its transitions start again, and the tokens do not.
    kubernetes.delete("scheduler");
    assert_eq!(start("third").token(), 3);
    assert_only_allowed_rows(&stage);
}

#[test]
fn its_transitions_start_again_with_the_lease() {
    let (stage, kubernetes) = (stage(), Kubernetes::start());
    let start = |name| start_candidate(&kubernetes, name, [name, "transitions"], &stage);
    assert_eq!(who_sleeps_is_refused(&stage, start), [1, 2]);
    kubernetes.delete("scheduler");
    let third = start("third");
    third.says("PF001: fencing token 1 is stale: scope \"default\" is at 2");
}

/// A Deployment whose pods all campaign under the same name.
#[test]
fn one_identity_of_two_processes_is_one_token() {
    let (stage, kubernetes) = (stage(), Kubernetes::start());
    let start = |name, way| start_candidate(&kubernetes, name, ["scheduler", way], &stage);
    let both = [
        start("first", "transitions"),
        start("second", "transitions"),
    ];
    for leader in &both {
        assert_eq!(leader.token(), 1);
        leader.rows(&stage);
        leader.pause(&stage);
    }
    // A taken number is not shared.
    assert_eq!(start("third", "take").token(), 2);
    for leader in &both {
        leader.resume();
        leader.says("PF001");
    }
    assert_only_allowed_rows(&stage);
}
