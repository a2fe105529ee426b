//! The oracle of sharing: two clients of one server connection, each of which looks for leftovers of the other.
//!
//! The same conversation runs without the proxy, each client in a session of its own. All replies must be the same, but
//! for a [list](judge).
//!
//! - [`generator`] makes a [`conversation`] from a seed, of things that clients [leave](leavings), and of
//!   [looks](looks) for them.
//! - [`pooled`] plays it through the proxy, [`judge`] plays it again without, and compares. [`trial`] does both, and
//!   finds the shortest conversation that still fails.

pub mod conversation;
pub mod generator;
pub mod judge;
pub mod leavings;
pub mod looks;
pub mod pooled;
mod replies;
pub mod trial;
mod twin;
