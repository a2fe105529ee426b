//! Servers and clients of the end-to-end tests: real PostgreSQL, the real proxy, and what speaks to both.
//!
//! `proxy/harness` starts and ends processes; `pgpalisade demo` uses it too. In reading order:
//! - [`machine`]: free ports, directories, waiting with a bound, signals; [`clock`]: a clock to step.
//! - [`postgres`]: a private PostgreSQL on a free port, unprivileged, removed when dropped.
//! - [`patroni`]: two servers managed by Patroni.
//! - [`etcd`]: private etcd clusters, to pause, kill and restart.
//! - [`zookeeper`]: a private ZooKeeper.
//! - [`kubernetes`]: a small server of Leases.
//! - [`pooler`]: a pgbouncer between proxy and server, which pgpalisade does not support.
//! - [`proxy`]: the binary `pgpalisade serve` in front of PostgreSQL.
//! - [`stage`]: PostgreSQL and proxy together, for most tests.
//! - [`tls`]: certificates for all of them; [`tls_client`]: TLS of a client.
//! - [`wire`]: a client that sends and reads protocol messages by hand.
//! - [`held_relay`]: a TCP relay that can hold bytes back, to stop time between proxy and server.
//! - [`browser`]: headless Chromium, for the dashboard.
//! - [`http`]: an HTTP client, for metrics and health.
//! - [`programs`]: psql, pgbench and pg_dump as child processes; [`policy`]: policy files.
//!
//! With `PGPALISADE_TESTS_DIRECT=1` a [`proxy::Proxy`] is only a name for PostgreSQL itself. Comparisons with
//! PostgreSQL must then pass; a failure is a fault of the test, not of the proxy.

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
