//! The harness of the end-to-end tests: real PostgreSQL, the real proxy, and clients that speak to both.
//!
//! What starts and ends processes is in `proxy/harness`, which `pgpalisade demo` is made of too. In reading order:
//! - [`machine`]: free ports, directories, waiting with a bound, signals.
//! - [`postgres`]: a private PostgreSQL on a free port, unprivileged, removed when dropped.
//! - [`patroni`]: two that Patroni keeps.
//! - [`etcd`]: private etcd clusters, to pause, kill and restart.
//! - [`zookeeper`]: the same of ZooKeeper.
//! - [`kubernetes`]: a small server of Leases.
//! - [`pooler`]: a pgbouncer, where none belongs.
//! - [`proxy`]: the binary `pgpalisade serve` in front of it.
//! - [`stage`]: both together, which is what most tests want.
//! - [`tls`]: certificates for all of them; [`tls_client`]: what a client makes of them.
//! - [`wire`]: a client that sends and reads protocol messages by hand.
//! - [`held_relay`]: a TCP relay that can hold bytes back, to stop time between proxy and server.
//! - [`browser`]: headless Chromium, for the dashboard.
//! - [`http`]: asks the proxy for metrics and health.
//! - [`programs`]: psql, pgbench and pg_dump as child processes.
//! - [`mediation`]: conversations at random, and the database as the judge; `make mediation` runs it for long.
//! - [`proof`]: leaders, faults at random, and a checker of the history; `make proof` runs it for long.
//!
//! With `PGPALISADE_TESTS_DIRECT=1` a [`proxy::Proxy`] is only a name for PostgreSQL itself. The
//! comparisons must then hold trivially; what fails there is the test, not the proxy.

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
pub mod mediation;
pub mod patroni;
pub mod policy;
pub mod pooler;
pub mod postgres;
pub mod programs;
pub mod proof;
pub mod proxy;
pub mod stage;
pub mod tls;
pub mod tls_client;
pub mod wire;
pub mod zookeeper;
