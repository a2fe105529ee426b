//! The suite that every store must pass.

use std::sync::Arc;

use pgpalisade_authority::conformance;
use pgpalisade_tests::etcd::Etcd;
use pgpalisade_tests::machine;

use crate::stage::connect_to;

async fn passes(members: usize) {
    let etcd = Etcd::start(members);
    let seed = machine::seed();
    let store = Arc::new(connect_to(&etcd.authority()).await);
    for step in 0..3 {
        conformance::run(Arc::clone(&store) as _, seed.wrapping_add(step)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_member() {
    passes(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_members() {
    passes(3).await;
}
