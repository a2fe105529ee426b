//! The proof: several leaders on several proxies, faults at random, and a checker of what came out.
//!
//! In reading order:
//! - [`history`]: what a run writes down, and [`checker`]: what must be true of it.
//! - [`client`]: a client that never waits without a bound; [`shapes`]: the ways in which it writes.
//! - [`cutter`]: links that hold bytes back or are cut.

pub mod checker;
pub mod client;
pub mod cutter;
pub mod history;
pub mod shapes;
