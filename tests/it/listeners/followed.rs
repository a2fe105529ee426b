//! Listeners that follow an election which their program, or another one, holds.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::kubernetes::Kubernetes;
use pgpalisade_test_servers::machine::{assert_says, assert_within, wait_until};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::programs::{feed, stdout};
use pgpalisade_test_servers::proxy::Store;
use pgpalisade_test_servers::wire::{TRUSTED, Wire};
use serde_json::json;
use tempfile::TempDir;

use super::{POOLS, Replica, SETUP, assert_ended, written};

const ENDED: &str = "The election that the proxy follows has ended this lead";
const UNREAD: &str = "could not be read, or was not renewed, in time";

/// What client-go appends to the name of a holder, but for the last four digits.
const UUID: &str = "6f1c2f6e-8a0b-4b52-9d0a-0c6b4e4b";

/// Duration of the Lease, in seconds.
const LEASE: u64 = 9;

/// An election held outside the proxies.
trait Election {
    /// The keys of a replica's listener.
    fn keys(&self, replica: &str) -> String;

    /// Lets a replica lead after the one before; `term` is the number of the lead.
    fn elect(&self, replica: &str, term: u64);

    /// Makes it unreadable.
    fn hang(&self);

    fn resume(&self);
}

/// Each replica's program writes its number into a file.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, replica: &str) -> PathBuf {
        self.0.path().join(replica)
    }

    fn write(&self, replica: &str, text: &str) {
        fs::write(self.path(replica), text).unwrap();
    }
}

impl Election for Files {
    fn keys(&self, replica: &str) -> String {
        format!("token = 'file:{}'", self.path(replica).display())
    }

    fn elect(&self, replica: &str, term: u64) {
        for other in ["a", "b"] {
            let _absent = fs::remove_file(self.path(other));
        }
        self.write(replica, &format!("{}\n", term * 10));
    }

    fn hang(&self) {
        fs::remove_file(self.path("a")).unwrap();
        fs::create_dir(self.path("a")).unwrap();
    }

    fn resume(&self) {
        fs::remove_dir(self.path("a")).unwrap();
        self.write("a", "50");
    }
}

const KEY: &str = "/elections/jobs";

impl Election for Etcd {
    fn keys(&self, replica: &str) -> String {
        format!("token = 'etcd:{KEY}', identity = '{replica}'")
    }

    fn elect(&self, replica: &str, _: u64) {
        self.ctl(&["put", &format!("{KEY}/{replica}"), replica]);
        let other = if replica == "a" { "b" } else { "a" };
        self.ctl(&["del", &format!("{KEY}/{other}")]);
    }

    fn hang(&self) {
        self.pause(0);
    }

    fn resume(&self) {
        self.resume(0);
    }
}

/// A Lease with a holder that renews it, as client-go does.
struct Lease {
    kubernetes: Arc<Kubernetes>,
    is_over: Arc<AtomicBool>,
}

impl Lease {
    fn new() -> Self {
        let kubernetes = Arc::new(Kubernetes::start());
        kubernetes.create("jobs", &json!({ "leaseDurationSeconds": LEASE }));
        let is_over = Arc::new(AtomicBool::new(false));
        let (api, ends) = (Arc::clone(&kubernetes), Arc::clone(&is_over));
        thread::spawn(move || {
            for renewed in 0_u64.. {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                let _hangs =
                    api.try_change("jobs", |lease| lease["spec"]["renewTime"] = renewed.into());
                thread::sleep(Duration::from_millis(300));
            }
        });
        Self {
            kubernetes,
            is_over,
        }
    }

    fn is_no_longer_renewed(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.is_no_longer_renewed();
    }
}

impl Election for Lease {
    fn keys(&self, replica: &str) -> String {
        let api = self.kubernetes.address();
        format!(
            "token = 'kubernetes:default/jobs', identity = '{replica}', kubernetes = 'http://{api}'"
        )
    }

    fn elect(&self, replica: &str, term: u64) {
        self.kubernetes.change("jobs", |lease| {
            lease["spec"]["holderIdentity"] = format!("{replica}_{UUID}{term:04}").into();
            lease["spec"]["leaseTransitions"] = term.into();
        });
    }

    fn hang(&self) {
        self.kubernetes.pause();
    }

    fn resume(&self) {
        self.kubernetes.resume();
    }
}

/// Marks, and the election of one kind, and the number of its first lead.
struct Scene {
    postgres: Postgres,
    etcd: Arc<Etcd>,
    election: Arc<dyn Election>,
}

impl Scene {
    fn with(election: impl FnOnce(&Arc<Etcd>) -> Arc<dyn Election>) -> Self {
        let (postgres, etcd) = (Postgres::start(), Arc::new(Etcd::start(1)));
        postgres.sql(SETUP);
        let election = election(&etcd);
        Self {
            postgres,
            etcd,
            election,
        }
    }

    fn replica(&self, name: &str, more: &str, flags: &[(&str, &str)]) -> Replica {
        let keys = format!("{}{more}", self.election.keys(name));
        let store = Store::Url(self.etcd.authority());
        Replica::start_with(&self.postgres, &store, &keys, flags)
    }
}

type Kind = fn(&Arc<Etcd>) -> Arc<dyn Election>;

const KINDS: [(&str, Kind); 3] = [
    ("file", |_| Arc::new(Files::new())),
    ("etcd", |etcd| Arc::clone(etcd) as Arc<dyn Election>),
    ("kubernetes", |_| Arc::new(Lease::new())),
];

#[test]
fn the_replica_that_leads_gets_the_token() {
    for (kind, make) in KINDS {
        for pool in POOLS {
            let scene = Scene::with(make);
            let [first, second] =
                ["a", "b"].map(|name| scene.replica(name, "", &[("--pool", pool)]));
            assert!(first.leader().is_none() && second.leader().is_none());
            scene.election.elect("a", 1);
            let number = first.leads();
            let mut wire = first.open();
            wire.ok("BEGIN");
            wire.ok("INSERT INTO jobs VALUES (1)");
            second.open().fails("INSERT INTO jobs VALUES (1)", "PF002");
            scene.election.elect("b", 2);
            assert_ended(wire, "PF001", "");
            let next = second.leads();
            assert!(next > number, "{kind} {pool}: {next} after {number}");
            second.open().ok("INSERT INTO jobs VALUES (1)");
            first.open().fails("INSERT INTO jobs VALUES (1)", "PF002");
            let why = match kind {
                "file" => "there is no such file",
                "etcd" => "b\\\" leads",
                _ => "b_",
            };
            let says = |line: &str| line.contains("this proxy does not lead") && line.contains(why);
            wait_until(why, || first.proxy.output().lines().any(says));
            // Once more, in the same replica.
            scene.election.elect("a", 3);
            wait_until("the first again", || first.leads() > next);
            let wire = first.open();
            // Of one that no proxy follows.
            scene.election.elect("c", 4);
            assert_ended(wire, "PF001", ENDED);
            assert_eq!(written(&scene.postgres), next.to_string(), "{kind} {pool}");
        }
    }
}

#[test]
fn an_election_that_cannot_be_read_ends_the_lead() {
    for (_, make) in KINDS {
        let scene = Scene::with(make);
        let replica = scene.replica("a", "", &[]);
        scene.election.elect("a", 1);
        let number = replica.leads();
        let wire = replica.open();
        scene.election.hang();
        let mut wire = wire;
        wire.set_patience(Duration::from_secs(30));
        assert_ended(wire, "PF001", UNREAD);
        scene.election.resume();
        wait_until("the lead again", || replica.leads() >= number);
    }
}

/// Nobody else has taken it yet: its holder may just have died.
#[test]
fn a_lease_counts_while_its_holder_renews_it() {
    let lease = Arc::new(Lease::new());
    let scene = Scene::with(|_| Arc::clone(&lease) as Arc<dyn Election>);
    lease.elect("a", 1);
    let replica = scene.replica("a", "", &[]);
    replica.leads();
    let wire = replica.open();
    let begun = Instant::now();
    lease.is_no_longer_renewed();
    assert_ended(wire, "PF001", UNREAD);
    assert_within(begun, Duration::from_secs(LEASE));
    // Another proxy finds the same Lease, as it was left.
    let late = scene.replica("a", "", &[]);
    thread::sleep(Duration::from_secs(LEASE));
    assert!(replica.leader().is_none() && late.leader().is_none());
}

/// The next leader would get the number of the last.
#[test]
fn a_key_whose_number_may_be_anothers_gives_no_lead() {
    let scene = Scene::with(|etcd| Arc::clone(etcd) as Arc<dyn Election>);
    let replicas = ["a", "b"].map(|name| scene.replica(name, "", &[]));
    let nobody = |why: &str| {
        let says = |replica: &Replica| replica.proxy.output().contains(why);
        wait_until(why, || replicas.iter().any(says));
        thread::sleep(Duration::from_secs(1));
        let leaders = replicas.each_ref().map(Replica::leader);
        assert_eq!(leaders, [None, None], "{why}");
    };
    let [one, two] = ["1", "2"].map(|key| format!("{KEY}/{key}"));
    scene.etcd.ctl(&["put", &one, "a"]);
    replicas[0].leads();
    let wire = replicas[0].open();
    scene.etcd.ctl(&["put", &one, "b"]);
    assert_ended(wire, "PF001", ENDED);
    nobody("written again");
    scene.etcd.ctl(&["del", &one]);
    let mut both = Command::new("etcdctl");
    both.env("ETCDCTL_API", "3");
    both.args(["--endpoints", scene.etcd.urls().first().unwrap(), "txn"]);
    stdout(&feed(both, &format!("\nput {one} a\nput {two} b\n\n\n")));
    nobody("the same transaction");
}

/// They would share its number.
#[test]
fn a_longer_name_is_another_replicas() {
    let scene = Scene::with(|etcd| Arc::clone(etcd) as Arc<dyn Election>);
    let [short, long] = ["a", "a_b"].map(|name| scene.replica(name, "", &[]));
    scene.election.elect("a_b", 1);
    long.leads();
    thread::sleep(Duration::from_secs(1));
    assert!(short.leader().is_none());
}

#[test]
fn two_replicas_with_one_identity_never_share_a_token() {
    let lease = Arc::new(Lease::new());
    let scene = Scene::with(|_| Arc::clone(&lease) as Arc<dyn Election>);
    lease.elect("a", 1);
    let first = scene.replica("a", "", &[]);
    assert_eq!(first.leads(), 1);
    let wire = first.open();
    let second = scene.replica("a", "", &[]);
    assert_eq!(second.leads(), 2);
    assert_ended(wire, "PF001", "");
    // They do not depose each other in turn: the number of a lead is taken once.
    thread::sleep(Duration::from_secs(3));
    assert!(first.leader().is_none());
    assert_eq!(second.leads(), 2);
}

#[test]
fn a_deposed_lead_comes_back_after_another_or_a_repair() {
    let lease = Arc::new(Lease::new());
    let scene = Scene::with(|_| Arc::clone(&lease) as Arc<dyn Election>);
    lease.elect("a", 1);
    let replica = scene.replica("a", "", &[]);
    replica.leads();
    let depose = |token: u64| {
        let sql = format!("SET fencing.token = {token}");
        Wire::login(&replica.proxy.endpoint(), &TRUSTED).ok(&sql);
        thread::sleep(Duration::from_secs(2));
        assert!(replica.leader().is_none());
    };
    depose(40);
    assert_says(
        &replica.proxy.output(),
        "no session gets a token until another leads",
    );
    // The same holder again, as a program writes it that counts nothing.
    lease.elect("b", 1);
    thread::sleep(Duration::from_secs(2));
    lease.elect("a", 1);
    assert_eq!(replica.leads(), 41);
    depose(1000);
    let mut repair = replica.proxy.subcommand("scope repair");
    repair.args([
        "--scope",
        "default",
        "--mark",
        "50",
        "--reason",
        "a mistake",
        "--yes",
    ]);
    assert!(repair.status().unwrap().success());
    assert_eq!(replica.leads(), 51);
}

#[test]
fn a_number_below_the_mark_is_given_to_nobody() {
    let files = Arc::new(Files::new());
    let scene = Scene::with(|_| Arc::clone(&files) as Arc<dyn Election>);
    let replica = scene.replica("a", "", &[]);
    for text in ["", "  \n", "3x", "-1", "0", &"9".repeat(200)] {
        files.write("a", text);
        thread::sleep(Duration::from_millis(300));
        assert!(replica.leader().is_none(), "{text:?}");
    }
    files.write("a", " 34\n");
    assert_eq!(replica.leads(), 34);
    let wire = replica.open();
    Wire::login(&replica.proxy.endpoint(), &TRUSTED).ok("SET fencing.token = 40");
    assert_ended(wire, "PF001", "");
    for text in ["34", "39"] {
        files.write("a", text);
        thread::sleep(Duration::from_millis(500));
        assert!(replica.leader().is_none(), "{text}");
    }
    files.write("a", "41");
    assert_eq!(replica.leads(), 41);
    let tasks = format!("/proc/{}/task", replica.proxy.pid());
    let threads = || fs::read_dir(&tasks).unwrap().count();
    let before = threads();
    fs::remove_file(files.path("a")).unwrap();
    let made = Command::new("mkfifo").arg(files.path("a")).status();
    assert!(made.unwrap().success());
    thread::sleep(Duration::from_secs(4));
    assert!(replica.leader().is_none() && threads() <= before + 1);
}

#[test]
fn a_command_is_run_when_the_lead_is_lost() {
    let files = Arc::new(Files::new());
    let scene = Scene::with(|_| Arc::clone(&files) as Arc<dyn Election>);
    let said = files.path("said");
    let script = r#"echo "$FENCING_SCOPE $FENCING_TOKEN $FENCING_LOSS" >"#;
    let on_loss = format!(", on_loss = ['sh', '-c', '{script} {}']", said.display());
    let replica = scene.replica("a", &on_loss, &[]);
    files.elect("a", 1);
    assert_eq!(replica.leads(), 10);
    assert!(!said.exists());
    files.elect("b", 2);
    let says =
        || fs::read_to_string(&said).is_ok_and(|text| text == format!("default 10 {ENDED}.\n"));
    wait_until("the command", says);
}
