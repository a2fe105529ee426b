//! The PostgreSQL store, on real servers that the tests start.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use pgpalisade_test_servers::machine;

mod failures;
mod first_use;
mod stage;
mod suite;
mod traps;
mod watching;
