//! Private servers as child processes: PostgreSQL, and the proxy in front of it.
//!
//! For `pgpalisade demo`, tests and benchmarks. This crate is shipped: it returns errors and does not panic.

pub mod child;
mod error;
pub mod patience;
mod place;
pub mod postgres;
pub mod proxy;

pub use error::{HarnessError, system};
pub use place::{free_port, scratch_directory};
pub use rustix::process::Signal;
