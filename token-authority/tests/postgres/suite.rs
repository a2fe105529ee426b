//! Suite that every store must pass.

use std::sync::Arc;
use std::time::Instant;

use pgpalisade_authority::Authority;
use pgpalisade_conformance::{self as conformance, Scale};

use crate::machine;
use crate::stage::{Server, connect};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conformance_of_the_postgres_store() {
    let server = Server::start();
    let store = connect(&server).await;
    conformance::run(Arc::new(store), machine::seed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_handles() {
    let server = Server::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    let two: [Arc<dyn Authority>; 2] = [Arc::new(a), Arc::new(b)];
    conformance::leases_lapse(&two).await;
    let [a, b] = two;
    conformance::run_two(a, b, machine::seed()).await;
}

#[tokio::test]
async fn postgres_follows_the_rule() {
    let server = Server::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    conformance::follows_the_rule(&[&a, &b], 60, machine::seed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_scale() {
    let server = Server::start();
    let scale = Scale {
        sessions: 10_000,
        scopes: 20_000,
        at_once: 512,
    };
    conformance::at_scale(Arc::new(connect(&server).await), scale).await;
    let begin = Instant::now();
    let store = connect(&server).await;
    let marks = store.marks().await.unwrap();
    println!(
        "at scale: start with {} marks in {:?}",
        marks.len(),
        begin.elapsed()
    );
    assert!(marks.len() >= scale.scopes);
}
