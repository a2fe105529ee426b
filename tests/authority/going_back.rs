//! A store that was wiped or restored under a running proxy must never accept: one test for each way to notice.

use pgpalisade_authority::{Authority, AuthorityError, Etcd};
use pgpalisade_test_servers::etcd;

use crate::stage::{CLUSTER, connect, declare, scope};

/// Every request is refused, with an error that says what to do.
async fn assert_refuses(store: &Etcd, reason: &str) {
    let error = declare(store, &scope("s"), 100, 100)
        .await
        .expect_err(reason);
    assert!(matches!(error, AuthorityError::WentBack(_)), "{error}");
    let text = error.to_string();
    println!("{text}");
    assert!(
        text.contains(reason) && text.contains("pgpalisade recover"),
        "{text}"
    );
    // Permanently.
    let again = declare(store, &scope("other"), 1, 1).await;
    assert_eq!(again, Err(error.clone()));
    assert_eq!(store.enrol(CLUSTER).await, Err(error.clone()));
    assert_eq!(store.marks().await, Err(error.clone()));
    assert_eq!(store.sessions().await, Err(error));
}

fn restore(etcd: &mut etcd::Etcd, snapshot: &std::path::Path, token: &str) {
    etcd.kill(0);
    let data = etcd.restore_snapshot(0, snapshot, token);
    etcd.restart_from(0, &data);
    etcd.wait_until_ready();
}

fn move_past(etcd: &etcd::Etcd, known: i64) {
    while etcd.revision(&[0]) < known + 10 {
        etcd.ctl(&["put", "others", ""]);
    }
}

/// A handle that has raised `s` to 10, with a snapshot from when it was 5.
async fn with_snapshot(etcd: &etcd::Etcd) -> (Etcd, std::path::PathBuf) {
    let store = connect(etcd).await;
    for value in 1..=5 {
        declare(&store, &scope("s"), value, 1).await.unwrap();
    }
    let snapshot = etcd.dir().join("snapshot");
    etcd.ctl(&["snapshot", "save", snapshot.to_str().unwrap()]);
    for value in 6..=10 {
        declare(&store, &scope("s"), value, 1).await.unwrap();
    }
    (store, snapshot)
}

/// An etcd, and a handle that has raised `s` to 7.
async fn raised() -> (etcd::Etcd, Etcd) {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    declare(&store, &scope("s"), 7, 1).await.unwrap();
    (etcd, store)
}

#[tokio::test]
async fn identity_removed() {
    let (etcd, store) = raised().await;
    etcd.ctl(&["del", "/pgpalisade/", "--prefix"]);
    assert_refuses(&store, "identity").await;
    // A proxy that starts now creates a new store with its own marks. The old proxy must not accept it.
    let other = connect(&etcd).await;
    assert_ne!(other.identity(), store.identity());
    declare(&other, &scope("s"), 1, 1).await.unwrap();
    assert_refuses(&store, "identity").await;
}

#[tokio::test]
async fn another_identity() {
    let (etcd, store) = raised().await;
    let other = r#"{"format":3,"identity":"00000000000000000000000000000001"}"#;
    etcd.ctl(&["put", "/pgpalisade/identity", other]);
    assert_refuses(&store, "its identity is 00000000000000000000000000000001").await;
}

#[tokio::test]
async fn wiped() {
    let (mut etcd, store) = raised().await;
    etcd.restart_empty(0);
    etcd.wait_until_ready();
    assert_refuses(&store, "revision").await;
}

#[tokio::test]
async fn restored_from_an_older_snapshot() {
    let mut etcd = etcd::Etcd::start(1);
    let (store, snapshot) = with_snapshot(&etcd).await;
    restore(&mut etcd, &snapshot, "etcd-cluster");
    assert_refuses(&store, "revision").await;
}

/// Before the next request, others have moved the restored store past the revision that this handle knows.
#[tokio::test]
async fn restored_and_gone_on() {
    let mut etcd = etcd::Etcd::start(1);
    let (store, snapshot) = with_snapshot(&etcd).await;
    let known = etcd.revision(&[0]);
    // Nothing here yields, so this test's runtime, which has one thread, does not run the watch meanwhile.
    restore(&mut etcd, &snapshot, "etcd-cluster");
    move_past(&etcd, known);
    assert_refuses(&store, "mark of scope s").await;
}

#[tokio::test]
async fn another_etcd_cluster() {
    let mut etcd = etcd::Etcd::start(1);
    let (store, snapshot) = with_snapshot(&etcd).await;
    let known = etcd.revision(&[0]);
    restore(&mut etcd, &snapshot, "another-token");
    move_past(&etcd, known);
    assert_refuses(&store, "another etcd cluster").await;
}

#[tokio::test]
async fn a_mark_removed_by_hand() {
    let (etcd, store) = raised().await;
    etcd.ctl(&["del", "/pgpalisade/mark/s"]);
    assert_refuses(&store, "the mark 7 of scope s has vanished").await;
}

#[tokio::test]
async fn another_format_while_running() {
    let (etcd, store) = raised().await;
    etcd.ctl(&["put", "/pgpalisade/identity", r#"{"format":4}"#]);
    let error = declare(&store, &scope("s"), 8, 1).await.unwrap_err();
    assert!(matches!(error, AuthorityError::Damaged(_)), "{error}");
    assert!(error.to_string().contains("another version"), "{error}");
}
