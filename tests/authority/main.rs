//! The etcd store against real etcd.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod amounts;
mod conformance;
mod elected;
mod faults;
mod going_back;
mod opening;
mod stage;
mod watching;
