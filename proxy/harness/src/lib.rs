//! Private servers as child processes: PostgreSQL, and the proxy in front of it.
//!
//! `pgpalisade demo` uses them, and so do the servers of tests and benchmarks (`tests/servers`), which add etcd and
//! pgbouncer. This crate is shipped: it returns errors and does not panic.
//!
//! - [`child`]: a process with a log file that ends on drop.
//! - [`patience`]: waiting with a limit.
//! - [`postgres`]: PostgreSQL's programs, run without root's rights, and a private server.
//! - [`proxy`]: commands of pgpalisade, and waiting until it listens.

pub mod child;
mod error;
pub mod patience;
mod place;
pub mod postgres;
pub mod proxy;

pub use error::{HarnessError, system};
pub use place::{free_port, scratch_directory};
pub use rustix::process::Signal;
