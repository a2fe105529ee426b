//! The suite that every store must pass, on one member and on three, and through two handles at the same time.

use std::sync::Arc;

use pgpalisade_authority::Authority;
use pgpalisade_conformance as conformance;
use pgpalisade_test_servers::etcd;
use pgpalisade_test_servers::machine;

use crate::stage::connect_to;

async fn passes(etcd: &etcd::Etcd) {
    let store = connect_to(&etcd.authority()).await;
    conformance::run(Arc::new(store), machine::seed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_member() {
    passes(&etcd::Etcd::start(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_members() {
    passes(&etcd::Etcd::start(3)).await;
}

/// Steps alternate between the handles, so that neither knows the store's contents.
#[tokio::test]
async fn etcd_follows_the_rule() {
    let etcd = etcd::Etcd::start(1);
    let authority = etcd.authority();
    let (one, other) = tokio::join!(connect_to(&authority), connect_to(&authority));
    assert_eq!(one.identity(), other.identity(), "who comes first makes it");
    conformance::follows_the_rule(&[&one, &other], 25, machine::seed()).await;
}

/// Two proxies that write to one scope at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_writers() {
    let etcd = etcd::Etcd::start(3);
    let authority = etcd.authority();
    let (one, other) = tokio::join!(connect_to(&authority), connect_to(&authority));
    let two: [Arc<dyn Authority>; 2] = [Arc::new(one), Arc::new(other)];
    conformance::leases_lapse(&two).await;
    let [one, other] = two;
    conformance::run_two(one, other, machine::seed()).await;
}
