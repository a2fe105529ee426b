//! The embedded store passes the suite that every store must pass.

use std::sync::Arc;
use std::time::Instant;

use pgpalisade_authority::{Authority, Embedded};
use pgpalisade_conformance::{self as conformance, Scale};
use pgpalisade_test_servers::machine;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn embedded() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Authority> = Arc::new(Embedded::open(dir.path()).unwrap());
    for seed in [0, machine::seed()] {
        conformance::run(Arc::clone(&store), seed).await;
    }
    conformance::leases_lapse(&[Arc::clone(&store), store]).await;
}

#[tokio::test]
async fn embedded_follows_the_rule() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path()).unwrap();
    conformance::follows_the_rule(&[&store], 60, machine::seed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_at_scale() {
    let dir = tempfile::tempdir().unwrap();
    let scale = Scale {
        sessions: 10_000,
        scopes: 20_000,
        at_once: 512,
    };
    let store = Embedded::open(dir.path()).unwrap();
    conformance::at_scale(Arc::new(store), scale).await;
    let begin = Instant::now();
    let store = Embedded::open(dir.path()).unwrap();
    let marks = store.marks().await.unwrap();
    println!(
        "at scale: start with {} marks in {:?}",
        marks.len(),
        begin.elapsed()
    );
    assert!(marks.len() >= scale.scopes);
}
