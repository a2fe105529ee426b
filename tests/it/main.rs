//! End-to-end tests: the real binary in front of a real PostgreSQL.
//!
//! One file for each theme. Every test starts its own server and its own proxy.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]
#![expect(
    clippy::too_many_lines,
    reason = "a test may have a long table, or a long story"
)]

/// Tests that are a call of one function with a text each.
macro_rules! told {
    ($check:ident; $($(#[$doc:meta])* $name:ident: $text:literal;)+) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            $check($text);
        }
    )+};
}

mod authority_down;
mod bench;
mod codes;
mod console;
mod crowd;
mod dashboard;
mod history;

mod elect;
mod elected;
mod fencing;
mod garbage;
mod hosts;
mod http;
mod inspect;
mod interpreters;
mod io_uring;
mod listeners;
mod log;
mod logins;
mod messages;
mod metrics;
mod open_files;
mod openapi;
mod packages;
mod policy;
mod policy_examples;
mod policy_explain;
mod policy_file;
mod pooled_elections;
mod pooler_between;
mod poolers_in_front;
mod pooling;
mod probes;
mod programs;
mod proxy_protocol;
mod recipes;
mod rejection_states;
mod rejections;
mod replicas;
mod scope_repair;
mod service;
mod snippets;
mod takeover_time;
mod takes;
mod tidy;
mod tls;
mod token_settings;
mod tools;
mod transparent;
mod traps;
mod unix_socket;
mod upgrade;
