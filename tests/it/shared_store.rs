//! The store that the tests with two proxies share is a true store: it passes the suite that every authority must pass.

use std::sync::Arc;

use pgpalisade_authority::conformance;
use pgpalisade_tests::machine::seed;
use pgpalisade_tests::shared_store::{Hub, SharedStore};

#[test]
fn conformance_of_the_shared_store() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path());
    let store = Arc::new(SharedStore::open(hub.socket()));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(conformance::run(store, seed()));
}
