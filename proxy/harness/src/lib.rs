//! Private servers as child processes: PostgreSQL, and the proxy in front of it.
//!
//! `pgpalisade demo` is made of it, and so is the harness of the tests and benchmarks (`tests/src`), which adds etcd,
//! pgbouncer and what a test asks of them. It is part of what is shipped: it gives errors and does not panic.
//!
//! - [`child`]: a process with a log file that ends with its guard.
//! - [`patience`]: waiting with a limit.
//! - [`postgres`]: PostgreSQL's programs, run without root's rights, and a server of one's own.
//! - [`proxy`]: commands of pgpalisade, and when it listens.

pub mod child;
mod error;
pub mod patience;
mod place;
pub mod postgres;
pub mod proxy;

pub use error::{HarnessError, system};
pub use place::{free_port, scratch_directory};
pub use rustix::process::Signal;
