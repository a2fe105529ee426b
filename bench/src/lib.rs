//! What the benchmarks share: servers and proxies to measure, and what they are measured with.
//!
//! - [`ground`]: a PostgreSQL that everything stands on, and a superuser's session at it.
//! - [`targets`]: the ways to it, each with its own process: the proxy, its peers, a bare relay.
//! - [`cpu`], [`memory`]: what a process has used; [`affinity`]: which processors it may use.
//! - [`statistics`], [`csv`], [`svg`]: what is made of the figures, and how they are kept and drawn.
//! - [`machine`], [`programs`]: where it ran, and with which versions.
//! - [`signals`]: how a run ends in order.

pub mod affinity;
pub mod cpu;
pub mod csv;
mod error;
pub mod ground;
pub mod machine;
pub mod memory;
pub mod programs;
pub mod signals;
pub mod statistics;
pub mod svg;
pub mod targets;

pub use error::Error;
