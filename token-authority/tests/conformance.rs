//! The embedded store passes the suite that every store must pass.

use std::sync::Arc;

use pgpalisade_authority::{Embedded, conformance};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn embedded() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Embedded::open(dir.path()).unwrap());
    for seed in 0..5 {
        conformance::run(Arc::clone(&store) as _, seed).await;
    }
}
