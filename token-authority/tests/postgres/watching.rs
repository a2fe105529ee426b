//! Changes become known: by NOTIFY at once, by polling without it, and across lost connections.

use std::time::{Duration, Instant};

use pgpalisade_authority::{Authority, Change, Cluster, Watch};
use tokio::time::timeout;

use crate::machine::PATIENCE;
use crate::stage::{CLUSTER, Server, connect, declare, scope, token};

async fn told(watch: &mut Watch, name: &str, value: u64) -> Duration {
    let begin = Instant::now();
    loop {
        let change = timeout(PATIENCE, watch.recv()).await;
        let change = change.unwrap_or_else(|_| panic!("{name} {value} is not told"));
        match change.expect("the store is open") {
            Change::Mark(s, mark) if s == scope(name) && mark.token == token(value) => {
                return begin.elapsed();
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raises_of_others_are_told_at_once() {
    let server = Server::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    let mut watch = b.watch();
    a.enrol(CLUSTER).await.unwrap();
    let mut slowest = Duration::ZERO;
    for value in 1..=10 {
        declare(&a, "s", value, 1).await.unwrap();
        slowest = slowest.max(told(&mut watch, "s", value).await);
    }
    println!("told within {slowest:?}");
    assert!(
        slowest < Duration::from_secs(1),
        "that was no notification: {slowest:?}"
    );
    let promoted = Cluster {
        timeline: 2,
        ..CLUSTER
    };
    a.enrol(promoted).await.unwrap();
    let change = timeout(PATIENCE, watch.recv()).await.unwrap();
    assert_eq!(change, Some(Change::Cluster(promoted)));
    drop(b);
    let found = timeout(PATIENCE, watch.recv()).await.unwrap();
    assert_eq!(found, None, "it ends with its store");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_notifies_is_found_by_looking() {
    let server = Server::start();
    let store = connect(&server).await;
    store.enrol(CLUSTER).await.unwrap();
    declare(&store, "s", 1, 1).await.unwrap();
    let mut watch = store.watch();
    for value in 2..4 {
        server.sql(&format!(
            "UPDATE pgpalisade_authority.marks SET token = {value}, changed = pg_current_xact_id()"
        ));
        told(&mut watch, "s", value).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_while_the_connection_is_lost_is_told() {
    let mut server = Server::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    a.enrol(CLUSTER).await.unwrap();
    let mut watch = b.watch();
    for value in 1..=5 {
        server.sql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
             WHERE application_name = 'pgpalisade authority'",
        );
        while declare(&a, "s", value, 1).await.is_err() {}
        told(&mut watch, "s", value).await;
    }
    server.crash();
    server.start_again(&[]);
    while declare(&a, "s", 6, 1).await.is_err() {}
    told(&mut watch, "s", 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_out_of_order_are_told() {
    let server = Server::start();
    let store = connect(&server).await;
    store.enrol(CLUSTER).await.unwrap();
    declare(&store, "early", 1, 1).await.unwrap();
    declare(&store, "late", 1, 1).await.unwrap();
    let mut watch = store.watch();
    // This transaction begins before the others and ends after them.
    let mut old = server.admin();
    old.rows("BEGIN");
    old.rows(
        "UPDATE pgpalisade_authority.marks SET token = 2, changed = pg_current_xact_id() WHERE scope = 'early'",
    );
    for value in 2..6 {
        declare(&store, "late", value, 1).await.unwrap();
        told(&mut watch, "late", value).await;
    }
    old.rows("COMMIT");
    told(&mut watch, "early", 2).await;
    declare(&store, "late", 6, 1).await.unwrap();
    let mut seen = Vec::new();
    while let Ok(change) = timeout(Duration::from_secs(1), watch.recv()).await {
        seen.push(change);
    }
    assert_eq!(seen.len(), 1, "nothing is told for ever: {seen:?}");
}
