//! The proof: several leaders on several proxies, faults at random, and a checker of what came out.
//!
//! In reading order:
//! - [`history`]: what a run writes down, and [`checker`]: what must be true of it.

pub mod checker;
pub mod history;
