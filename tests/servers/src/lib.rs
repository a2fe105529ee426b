//! Servers and clients of the end-to-end tests: real PostgreSQL, the real proxy, and what speaks to both.
//!
//! `proxy/harness` starts and ends processes.
//!
//! With `PGPALISADE_TESTS_DIRECT=1` a [`proxy::Proxy`] is only a name for PostgreSQL itself. Comparisons with
//! PostgreSQL must then pass; a failure is a fault of the test.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a harness that cannot go on fails the test"
)]

pub mod browser;
pub mod clock;
pub mod etcd;
pub mod held_relay;
pub mod http;
pub mod kubernetes;
pub mod machine;
pub mod patroni;
pub mod policy;
pub mod pooler;
pub mod postgres;
pub mod programs;
pub mod proxy;
pub mod stage;
pub mod tls;
pub mod tls_client;
pub mod wire;
pub mod zookeeper;
