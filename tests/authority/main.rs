//! The etcd store against real etcd: the suite that every store must pass, faults, and stores that have gone back.

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
mod repairs;
mod stage;
mod watching;
