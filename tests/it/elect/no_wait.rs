//! `--no-wait`: if another leads, the command does not run at all.

use std::time::{Duration, Instant};

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::kubernetes::Kubernetes;
use pgpalisade_test_servers::machine::{Signal, assert_within, wait_for, wait_until};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::Endpoint;

use super::kubernetes::url;
use super::{Candidate, etcd_arguments, kubernetes, token_of};

/// Arguments of `elect` for each kind of lock.
fn locks<'a>(etcd: &'a str, kubernetes: &'a str) -> [Vec<&'a str>; 4] {
    [
        vec!["jobs", "--with", "lease"],
        vec!["jobs", "--with", "advisory-lock:42"],
        etcd_arguments(etcd, &[]),
        kubernetes::arguments(kubernetes, &[]),
    ]
}

fn now(arguments: &[&str], script: &str, proxy: &Endpoint) -> Candidate {
    Candidate::start(&[arguments, &["--no-wait"]].concat(), script, proxy)
}

#[track_caller]
fn assert_held(arguments: &[&str], proxy: &Endpoint) {
    let mut late = now(arguments, "echo never", proxy);
    assert_eq!(late.exit_code(), 69, "{}", late.output());
    late.wait_for("the command has not run: another leads: ");
    let output = late.output();
    assert!(!output.contains("never") && !output.contains("waiting for"));
}

#[test]
fn it_runs_where_nobody_leads_and_not_behind_another() {
    let (stage, etcd) = (Stage::start(), Etcd::start(1));
    let (proxy, urls) = (stage.proxy.endpoint(), etcd.urls().join(","));
    let kubernetes = Kubernetes::start();
    for lock in locks(&urls, &url(&kubernetes)) {
        println!("{lock:?}");
        let mut leader = now(&lock, "sleep 60", &proxy);
        let token = token_of(&leader);
        assert_held(&lock, &proxy);
        // Nor after a waiting candidate.
        let mut waits = Candidate::start(&lock, "sleep 60", &proxy);
        waits.wait_for("waiting for");
        assert_held(&lock, &proxy);
        assert!(!leader.output().contains("lost"), "{}", leader.output());
        for candidate in [&mut waits, &mut leader] {
            candidate.process.signal(Signal::TERM);
            candidate.exit_code();
        }
        // Its lock is free shortly after it has ended.
        let next = wait_for("a free lock", || {
            let mut next = now(&lock, "exit 7", &proxy);
            let code = next.exit_code();
            assert!([7, 69].contains(&code), "{code}: {}", next.output());
            (code == 7).then_some(next)
        });
        assert_ne!(token_of(&next), token);
    }
}

/// PostgreSQL itself accepts any token, and compares none.
#[test]
fn a_command_that_would_go_past_the_proxy_does_not_run() {
    let (stage, etcd) = (Stage::start(), Etcd::start(1));
    let urls = etcd.urls().join(",");
    let kubernetes = Kubernetes::start();
    let directly = stage.postgres.tcp();
    for lock in locks(&urls, &url(&kubernetes)) {
        println!("{lock:?}");
        let mut leads = now(&lock, "echo never", &directly);
        assert_eq!(leads.exit_code(), 1, "{}", leads.output());
        leads.wait_for("is not pgpalisade");
        // Nor does it wait in the queue: the mistake would only show in a failover.
        let leader = now(&lock, "sleep 60", &stage.proxy.endpoint());
        token_of(&leader);
        let mut waits = Candidate::start(&lock, "echo never", &directly);
        waits.wait_for("is not pgpalisade");
        waits.process.signal(Signal::INT);
        assert_eq!(waits.exit_code(), 130);
        assert!(!(leads.output() + &waits.output()).contains("never\n"));
    }
}

/// Of several simultaneous candidates exactly one leads.
#[test]
fn of_many_at_once_one_runs() {
    let (stage, etcd) = (Stage::start(), Etcd::start(1));
    let (proxy, urls) = (stage.proxy.endpoint(), etcd.urls().join(","));
    let kubernetes = Kubernetes::start();
    for lock in locks(&urls, &url(&kubernetes)) {
        let over = tempfile::NamedTempFile::new().unwrap();
        let leads = format!("while [ -e {} ]; do sleep 0.1; done", over.path().display());
        let mut all: Vec<Candidate> = (0..6).map(|_| now(&lock, &leads, &proxy)).collect();
        wait_until("the others to give up", || {
            let ended = all.iter_mut().map(|one| one.process.ended());
            ended.flatten().count() == 5
        });
        drop(over);
        let mut codes: Vec<i32> = all.iter_mut().map(Candidate::exit_code).collect();
        codes.sort_unstable();
        assert_eq!(codes, [0, 69, 69, 69, 69, 69], "{lock:?}");
    }
}

/// If it is unknown who leads, that is a failure, and not the same as another leader.
#[test]
fn where_nobody_knows_who_leads_it_fails() {
    let mut etcd = Etcd::start(1);
    let urls = etcd.urls().join(",");
    let postgres = Postgres::start();
    let proxy = Proxy::start_with(Options::new(&postgres).store(etcd.authority()));
    etcd.kill(0);
    let begun = Instant::now();
    for (lock, words) in [
        (
            &["jobs", "--with", "lease"][..],
            "the token authority does not answer",
        ),
        (&etcd_arguments(&urls, &[]), "etcd"),
        (
            &kubernetes::arguments("http://127.0.0.1:1", &[]),
            "Kubernetes: cannot connect to ",
        ),
        (&["jobs", "--with", "advisory-lock:1"], "authority"),
    ] {
        let mut candidate = now(lock, "echo never", &proxy.endpoint());
        assert_eq!(candidate.exit_code(), 1, "{}", candidate.output());
        wait_until(words, || candidate.output().contains(words));
        assert!(!candidate.output().contains("never"));
    }
    assert_within(begun, Duration::from_secs(60));
}
