//! Kubernetes: a Lease to take the next number under; and why `leaseTransitions` is a bad token.

use pgpalisade_harness::child::Running;
use pgpalisade_tests::http::Http;
use pgpalisade_tests::machine::{repository, wait_for};
use pgpalisade_tests::programs::connect_by_environment;
use pgpalisade_tests::stage::Stage;
use tempfile::TempDir;

use super::{Candidate, KILL, assert_only_allowed_rows, python, stage, who_sleeps_is_refused};

/// As much of its API as Leases need.
struct Kubernetes {
    http: Http,
    dir: TempDir,
    _api: Running,
}

impl Kubernetes {
    fn start() -> Self {
        let (dir, http) = (tempfile::tempdir().unwrap(), Http::free());
        let mut command = python(&repository().join("tests/it/recipes/lease_api.py"));
        command.arg(http.port().to_string());
        let api = Running::spawn(&mut command, dir.path().join("log"), KILL).unwrap();
        wait_for("the API", || http.connect().ok());
        let config = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nusers: []\n\
             clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{}'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: k, user: ''}}}}]\n",
            http.port()
        );
        std::fs::write(dir.path().join("config"), config).unwrap();
        Self {
            http,
            dir,
            _api: api,
        }
    }

    /// With this identity, taking its token this way.
    fn start_candidate(
        &self,
        name: &'static str,
        arguments: [&str; 2],
        stage: &Stage,
    ) -> Candidate {
        let mut command = python(&repository().join("examples/kubernetes_lease.py"));
        connect_by_environment(&mut command, &stage.proxy.endpoint());
        command
            .args(arguments)
            .env("PGAPPNAME", name)
            .env("KUBECONFIG", self.dir.path().join("config"));
        Candidate::spawn(name, command)
    }

    fn delete_the_lease(&self) {
        let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/scheduler";
        let answer = self.http.ask("DELETE", path, "Connection: close\r\n");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[test]
fn a_lease_of_kubernetes_takes_the_next_number() {
    let (stage, kubernetes) = (stage(), Kubernetes::start());
    let start = |name| kubernetes.start_candidate(name, [name, "take"], &stage);
    assert_eq!(who_sleeps_is_refused(&stage, start), [1, 2]);
    // Its transitions start again, and the tokens do not.
    kubernetes.delete_the_lease();
    assert_eq!(start("third").token(), 3);
    assert_only_allowed_rows(&stage);
}

#[test]
fn its_transitions_start_again_with_the_lease() {
    let (stage, kubernetes) = (stage(), Kubernetes::start());
    let start = |name| kubernetes.start_candidate(name, [name, "transitions"], &stage);
    assert_eq!(who_sleeps_is_refused(&stage, start), [1, 2]);
    kubernetes.delete_the_lease();
    let third = start("third");
    third.says("PF001: fencing token 1 is stale: scope \"default\" is at 2");
}

/// A Deployment that gives each of its pods the same name to campaign with.
#[test]
fn one_identity_of_two_processes_is_one_token() {
    let (stage, kubernetes) = (stage(), Kubernetes::start());
    let start = |name, way| kubernetes.start_candidate(name, ["scheduler", way], &stage);
    let both = [
        start("first", "transitions"),
        start("second", "transitions"),
    ];
    for leader in &both {
        assert_eq!(leader.token(), 1);
        leader.rows(&stage);
    }
    // Whoever takes the next number does not share it.
    assert_eq!(start("third", "take").token(), 2);
    for leader in &both {
        leader.says("PF001");
    }
    assert_only_allowed_rows(&stage);
}
