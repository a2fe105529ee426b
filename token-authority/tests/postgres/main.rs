//! The PostgreSQL store, on real servers that the tests start.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

/// The harness of the end-to-end tests, as source: this crate comes before the one that it is in.
#[path = "../../../tests/src"]
#[expect(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::indexing_slicing,
    reason = "written for another crate, of which this one uses a part"
)]
mod harness {
    pub mod machine;
    pub mod postgres;
    pub mod wire;
}
// Where the harness looks for itself.
use harness::{machine, wire};

mod failures;
mod first_use;
mod stage;
mod suite;
mod watching;
