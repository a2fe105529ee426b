//! Candidates for a Lease of Kubernetes, together with those of client-go.

use std::process::Command;
use std::time::{Duration, Instant};

use pgpalisade_test_servers::kubernetes::Kubernetes;
use pgpalisade_test_servers::machine::{PATIENCE, Signal, assert_within, repository, wait_until};
use pgpalisade_test_servers::programs::connect_by_environment;
use pgpalisade_test_servers::proxy::binary;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::tls::Authority;
use serde_json::{Value, json};

use super::{Candidate, assert_fenced, governed, pause, resume, token_of, wait_for_terms, writer};

const LOST: &str = "lost kubernetes:default/jobs: ";

pub(super) fn arguments<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let with = [
        "jobs",
        "--with",
        "kubernetes:default/jobs",
        "--kubernetes",
        url,
    ];
    [&with, more].concat()
}

pub(super) fn url(kubernetes: &Kubernetes) -> String {
    format!("http://{}", kubernetes.address())
}

fn holder(kubernetes: &Kubernetes) -> Value {
    kubernetes.lease("jobs")["spec"]["holderIdentity"].clone()
}

#[test]
fn a_leader_of_kubernetes_that_was_killed_is_followed() {
    let (stage, kubernetes) = (governed(), Kubernetes::start());
    let (proxy, url) = (stage.proxy.endpoint(), url(&kubernetes));
    let arguments = arguments(&url, &["--ttl", "3s"]);
    let mut first = Candidate::start(&arguments, &writer(), &proxy);
    assert_eq!(token_of(&first), "1");
    first.wait_for("runs as");
    first.process.signal(Signal::KILL);
    // A candidate that does not wait for others finds that nobody leads.
    let no_wait = [&arguments[..], &["--no-wait"]].concat();
    let second = Candidate::start(&no_wait, &writer(), &proxy);
    let begun = Instant::now();
    wait_until("the next leader, or its refusal", || {
        let output = second.output();
        output.contains("leads") || output.contains("another leads")
    });
    if second.output().contains("another leads") {
        // The Lease was renewed just before.
        std::thread::sleep(Duration::from_secs(4));
        let second = Candidate::start(&no_wait, &writer(), &proxy);
        assert_eq!(token_of(&second), "2");
        return assert_fenced(&stage, &first, ["1", "2"]);
    }
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(token_of(&second), "2");
    assert_fenced(&stage, &first, ["1", "2"]);
}

/// A Lease is released immediately, and fields written by others stay.
#[test]
fn it_stands_in_one_line_with_client_go() {
    let (stage, kubernetes) = (
        Stage::with("CREATE TABLE jobs (name text, token bigint)"),
        Kubernetes::start(),
    );
    let (proxy, url) = (stage.proxy.endpoint(), url(&kubernetes));
    let elect = [
        "default",
        "--with",
        "kubernetes:default/scheduler",
        "--kubernetes",
        &url,
        "--ttl",
        "30s",
    ];
    let leads = |candidate: &Candidate| {
        candidate.wait_for("leads scope \"default\" with fencing token ");
    };
    let mut first = Candidate::start(&elect, "sleep 60", &proxy);
    leads(&first);
    kubernetes.change("scheduler", |lease| {
        lease["metadata"]["labels"] = json!({ "team": "jobs" });
    });
    let mut python = Command::new("/usr/bin/python3");
    connect_by_environment(&mut python, &proxy);
    python
        .arg(repository().join("examples/kubernetes_lease.py"))
        .args(["python", "take"])
        .env("PYTHONUNBUFFERED", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("KUBECONFIG", kubernetes.config());
    let mut second = Candidate::spawn(python);
    std::thread::sleep(Duration::from_secs(2));
    let spec = |name: &str| kubernetes.lease("scheduler")["spec"][name].clone();
    assert_ne!(spec("holderIdentity"), "python");
    first.process.signal(Signal::TERM);
    assert_eq!(first.exit_code(), 143);
    let begun = Instant::now();
    wait_until("its lead", || spec("holderIdentity") == "python");
    assert!(begun.elapsed() < Duration::from_secs(10));
    let third = Candidate::start(&elect, "sleep 60", &proxy);
    std::thread::sleep(Duration::from_secs(6));
    assert!(!third.output().contains("leads"), "{}", third.output());
    // Its Lease lives for 4 s.
    second.process.signal(Signal::KILL);
    leads(&third);
    assert_eq!(spec("leaseTransitions"), 2);
    assert_eq!(spec("leaseDurationSeconds"), 30);
    assert_eq!(
        kubernetes.lease("scheduler")["metadata"]["labels"]["team"],
        "jobs"
    );
}

#[test]
fn a_lease_that_was_deleted_or_taken_ends_its_term() {
    let (stage, kubernetes) = (governed(), Kubernetes::start());
    let (proxy, url) = (stage.proxy.endpoint(), url(&kubernetes));
    let arguments = arguments(&url, &["--ttl", "6s"]);
    let leader = Candidate::start(&arguments, &writer(), &proxy);
    assert_eq!(token_of(&leader), "1");
    kubernetes.delete("jobs");
    leader.wait_for(&format!("{LOST}the lease has ended"));
    leader.wait_for("told to end");
    wait_for_terms(&leader, 2);
    assert_eq!(token_of(&leader), "2");
    kubernetes.change("jobs", |lease| {
        lease["spec"]["holderIdentity"] = json!("somebody");
    });
    wait_for_terms(&leader, 3);
    assert_eq!(token_of(&leader), "3");
    assert_eq!(leader.output().matches(LOST).count(), 2);
}

/// Anybody may write labels and annotations.
#[test]
fn whoever_writes_beside_the_leader_deposes_nobody() {
    let (stage, kubernetes) = (Stage::start(), Kubernetes::start());
    let (proxy, url) = (stage.proxy.endpoint(), url(&kubernetes));
    let arguments = arguments(&url, &["--ttl", "3s"]);
    let leader = Candidate::start(&arguments, "sleep 60", &proxy);
    token_of(&leader);
    let next = Candidate::start(&arguments, "sleep 60", &proxy);
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(6) {
        count += 1;
        kubernetes.change("jobs", |lease| {
            lease["metadata"]["labels"] = json!({ "count": count.to_string() });
        });
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!leader.output().contains(LOST), "{}", leader.output());
    // They do not prolong a Lease that nobody renews.
    pause(&leader);
    let begun = Instant::now();
    while !next.output().contains("leads") {
        assert!(begun.elapsed() < Duration::from_secs(20));
        kubernetes.change("jobs", |lease| {
            lease["metadata"]["labels"] = json!({ "count": "0" });
        });
        std::thread::sleep(Duration::from_millis(100));
    }
    resume(&leader);
}

#[test]
fn whoever_cannot_reach_kubernetes_steps_down_before_its_lease_ends() {
    let (stage, kubernetes) = (governed(), Kubernetes::start());
    let (proxy, url) = (stage.proxy.endpoint(), url(&kubernetes));
    let arguments = arguments(&url, &["--ttl", "6s", "--grace", "500ms", "--once"]);
    let mut leader = Candidate::start(&arguments, &writer(), &proxy);
    token_of(&leader);
    leader.wait_for("runs as");
    let before = holder(&kubernetes);
    kubernetes.pause();
    let begun = Instant::now();
    leader.wait_for(LOST);
    assert_within(begun, Duration::from_secs(6));
    assert_eq!(leader.exit_code(), 75, "{}", leader.output());
    kubernetes.resume();
    // A leader that cannot release the Lease lets it expire.
    assert!([before, json!("")].contains(&holder(&kubernetes)));
}

/// A service account's token changes while its process runs.
#[test]
fn the_server_is_verified_and_the_token_read_for_each_request() {
    let (stage, authority) = (Stage::start(), Authority::new());
    let kubernetes = Kubernetes::with_tls(&authority, "the-token");
    let proxy = stage.proxy.endpoint();
    let file = authority.path("token");
    let url = |ca: &Authority| {
        format!(
            "https://{}?ca={}&token_file={}",
            kubernetes.address(),
            ca.certificate().display(),
            file.display()
        )
    };
    std::fs::write(&file, "another-token\n").unwrap();
    let url_of_ours = url(&authority);
    let arguments_of_ours = arguments(&url_of_ours, &["--ttl", "3s"]);
    let candidate = Candidate::start(&arguments_of_ours, "sleep 60", &proxy);
    candidate.wait_for("Kubernetes: it refuses, with status 401 (it does not know the token");
    std::fs::write(&file, "the-token\n").unwrap();
    token_of(&candidate);
    std::fs::write(&file, "another-token\n").unwrap();
    candidate.wait_for(LOST);
    assert!(!candidate.output().contains("another-token"));
    std::fs::write(&file, "the-token\n").unwrap();
    let stranger = Authority::new();
    let elsewhere = url(&stranger);
    let no_wait = arguments(&elsewhere, &["--no-wait"]);
    let mut deceived = Candidate::start(&no_wait, "echo never", &proxy);
    assert_eq!(deceived.exit_code(), 1, "{}", deceived.output());
    deceived.wait_for(": invalid peer certificate");
    let localhost = url_of_ours.replace("127.0.0.1", "127.0.0.2");
    let mut elsewhere =
        Candidate::start(&arguments(&localhost, &["--no-wait"]), "echo never", &proxy);
    assert_eq!(elsewhere.exit_code(), 1, "{}", elsewhere.output());
}

/// The service account provides the address of Kubernetes.
#[test]
fn in_a_pod_nothing_has_to_be_said() {
    let (stage, authority) = (Stage::start(), Authority::new());
    let kubernetes = Kubernetes::with_tls(&authority, "the-token");
    // A directory that is also open to root of the namespace.
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.crt");
    std::fs::copy(authority.certificate(), &ca).unwrap();
    let address = kubernetes.address();
    let (host, port) = address.split_once(':').unwrap();
    let account = "/run/secrets/kubernetes.io/serviceaccount";
    let script = format!(
        "mount -t tmpfs none /run && mkdir -p {account} && cp {} {account}/ca.crt && echo the-token > {account}/token &&
         exec {} elect jobs --with kubernetes:default/jobs -- sh -c 'echo leads as $FENCING_TOKEN'",
        ca.display(),
        binary().display()
    );
    let mut command = Command::new("unshare");
    connect_by_environment(&mut command, &stage.proxy.endpoint());
    command
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .env("KUBERNETES_SERVICE_HOST", host)
        .env("KUBERNETES_SERVICE_PORT", port);
    let mut pod = Candidate::spawn(command);
    assert_eq!(pod.exit_code(), 0, "{}", pod.output());
    assert!(pod.output().contains("leads as 1"), "{}", pod.output());
}

/// A candidate that looks only once must not wait for an end that its own clock does not see.
#[test]
fn a_leader_whose_clock_is_wrong_leads_all_the_same() {
    let (stage, kubernetes) = (Stage::start(), Kubernetes::start());
    let (proxy, url) = (stage.proxy.endpoint(), url(&kubernetes));
    let arguments = arguments(&url, &["--ttl", "6s", "--no-wait"]);
    let mut made = Candidate::start(&arguments, "sleep 60", &proxy);
    token_of(&made);
    made.process.signal(Signal::KILL);
    made.process.wait(PATIENCE);
    let renew = |count: u32| {
        kubernetes.change("jobs", |lease| {
            lease["spec"]["holderIdentity"] = json!("somebody");
            lease["spec"]["renewTime"] = json!(format!("2001-01-01T00:00:00.{count:06}Z"));
        });
    };
    renew(0);
    let mut late = Candidate::start(&arguments, "echo never", &proxy);
    let begun = Instant::now();
    for count in 1.. {
        renew(count);
        if late
            .output()
            .contains("another leads: somebody holds the Lease")
        {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(late.exit_code(), 69, "{}", late.output());
}

/// The leader's last renewal, or a label, comes in between: neither changes who leads.
#[test]
fn a_command_that_ends_in_the_middle_of_a_change_has_led() {
    let (stage, kubernetes) = (Stage::start(), Kubernetes::start());
    let (proxy, url) = (stage.proxy.endpoint(), url(&kubernetes));
    let arguments = arguments(&url, &["--ttl", "30s", "--once"]);
    let change = |count: u32| {
        kubernetes.change("jobs", |lease| {
            lease["metadata"]["labels"] = json!({ "count": count.to_string() });
        });
    };
    for _ in 0..5 {
        let mut leader = Candidate::start(&arguments, "sleep 0.3; exit 3", &proxy);
        token_of(&leader);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    (0..)
                        .take_while(|_| begun.elapsed().as_millis() < 700)
                        .for_each(change)
                });
            }
        });
        assert_eq!(leader.exit_code(), 3, "{}", leader.output());
        assert_eq!(holder(&kubernetes), "", "it is given back");
    }
}
