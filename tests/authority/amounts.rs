//! Large numbers: thousands of sessions in one scope, and very many scopes. The times are printed.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{Authority, Mark};
use pgpalisade_conformance::{Scale, at_scale};
use pgpalisade_test_servers::etcd;

use crate::stage::{CLUSTER, connect, scope, timed, token};

/// More than fits into a message of etcd or a page of ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sessions_and_scopes() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let scale = Scale {
        sessions: 10_000,
        scopes: 3_000,
        at_once: 50,
    };
    at_scale(Arc::new(store.clone()), scale).await;
    let sessions = store.sessions().await.unwrap();
    let records = etcd.ctl(&["get", "/pgpalisade/backend/", "--prefix", "--keys-only"]);
    let records = records.split_whitespace().count();
    assert_eq!(records, sessions.len(), "records of removed sessions stay");
}

/// Writing 100,000 takes 20 s here, reading them 2 s, with 35 MiB of memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_scopes() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let mark = Mark::new(token(7), 1, "test".to_owned());
    let scopes = (0..20_000).map(|index| scope(&format!("tenant/{index:08}")));
    let marks: Vec<_> = scopes.map(|scope| (scope, mark.clone())).collect();
    let writing = store.recover(Some(CLUSTER), CLUSTER, &marks);
    timed("recover 20,000 marks", writing).await.0.unwrap();
    // Another handle, without any cached marks.
    let reader = connect(&etcd).await;
    let (read, took) = timed("marks() of 20,000 scopes", reader.marks()).await;
    assert_eq!(read.unwrap(), marks);
    assert!(took < Duration::from_secs(10), "{took:?}");
}
