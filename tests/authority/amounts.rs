//! Large numbers: thousands of sessions in one scope, and very many scopes. The times are printed.

use std::time::Duration;

use pgpalisade_authority::{Authority, Backend, Drained, Mark};
use pgpalisade_test_servers::etcd;
use tokio::task::JoinSet;

use crate::stage::{CLUSTER, backend, connect, declare, lower, scope, timed, token};

const SESSIONS: i32 = 10_000;
/// Writing 100,000 takes 20 s here, reading them 2 s, with 35 MiB of memory.
const SCOPES: usize = 20_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_sessions_in_one_scope() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let s = scope("pool");
    declare(&store, &s, 1, 1).await.unwrap();
    assert_eq!(
        store.drained(&s, token(1).into(), &[]).await,
        Ok(Drained::Complete)
    );
    let registering = async {
        let mut tasks = JoinSet::new();
        for task in 0..50 {
            let (store, s) = (store.clone(), s.clone());
            tasks.spawn(async move {
                for pid in (2..=SESSIONS).filter(|pid| pid % 50 == task) {
                    let left = lower(declare(&store, &s, 1, pid).await.unwrap());
                    assert!(left.is_empty(), "a drained scope reads no sessions");
                }
            });
        }
        tasks.join_all().await;
    };
    timed("register 10,000 sessions, 50 at a time", registering).await;
    // More than fits into a message of etcd or a page of ours.
    let (left, took) = timed("raise", declare(&store, &s, 2, 100_000)).await;
    let left: Vec<Backend> = lower(left.unwrap()).iter().map(|r| r.backend).collect();
    let all: Vec<Backend> = (1..=SESSIONS).map(backend).collect();
    assert_eq!(left, all, "all of them, in order");
    assert!(took < Duration::from_secs(3), "{took:?}");
    let (sessions, _) = timed("sessions()", store.sessions()).await;
    assert_eq!(sessions.unwrap().len(), all.len() + 1);
    let (kept, gone) = all.split_first().unwrap();
    let (drained, took) = timed(
        "drained, all but one",
        store.drained(&s, token(2).into(), gone),
    )
    .await;
    match drained.unwrap() {
        Drained::Left(left) => assert_eq!(left[0].backend, *kept),
        Drained::Complete => panic!("one is left"),
    }
    assert!(took < Duration::from_secs(4), "{took:?}");
    let last = [*kept];
    let last = store.drained(&s, token(2).into(), &last);
    assert_eq!(
        timed("drained, the last", last).await.0,
        Ok(Drained::Complete)
    );
    let left = lower(declare(&store, &s, 2, 100_001).await.unwrap());
    assert!(left.is_empty());
    assert_eq!(store.sessions().await.unwrap().len(), 2);
    // The records by backend are gone too, except those of the remaining two.
    let records = etcd.ctl(&["get", "/pgpalisade/backend/", "--prefix", "--keys-only"]);
    assert_eq!(records.split_whitespace().count(), 2, "{records}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_scopes() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let marks: Vec<_> = (0..SCOPES)
        .map(|index| {
            let mark = Mark::new(token(7), 1, "test".to_owned());
            (scope(&format!("tenant/{index:08}")), mark)
        })
        .collect();
    let writing = store.recover(Some(CLUSTER), CLUSTER, &marks);
    timed("recover 20,000 marks", writing).await.0.unwrap();
    // Another handle, without any cached marks.
    let reader = connect(&etcd).await;
    let before = resident_kib();
    let (read, took) = timed("marks() of 20,000 scopes", reader.marks()).await;
    println!("memory: {} KiB more", resident_kib().saturating_sub(before));
    let read = read.unwrap();
    assert_eq!(read, marks);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().trim().split(' ').next().unwrap();
    number.parse().unwrap()
}
