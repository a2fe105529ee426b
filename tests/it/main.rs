//! End-to-end tests: the real binary in front of a real PostgreSQL.
//!
//! One file for each theme. Every test starts its own server and its own proxy.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod authority_down;
mod bench;
mod crowd;
mod dropped_parameters;
mod fencing;
mod garbage;
mod inspect;
mod io_uring;
mod open_files;
mod policy;
mod policy_examples;
mod policy_explain;
mod policy_file;
mod programs;
mod rejection_states;
mod report;
mod scope_repair;
mod takeover_time;
mod tidy;
mod tls;
mod token_settings;
mod transparent;
