//! The suite that every store must pass.

use std::sync::Arc;

use pgpalisade_authority::conformance;

use crate::machine;
use crate::stage::{Server, connect};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conformance_of_the_postgres_store() {
    let server = Server::start();
    let store = Arc::new(connect(&server).await);
    let seed = machine::seed();
    for seed in [0, 1, 2, seed] {
        conformance::run(Arc::clone(&store) as _, seed).await;
    }
}
