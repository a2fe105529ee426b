//! The oracle of mediation: conversations that nobody would write by hand, and the database as the judge.
//!
//! A session that may not write sends anything that the protocol and SQL have, in any grouping. Whatever the proxy
//! believes of it, afterwards PostgreSQL must hold no row, transaction id, large object, notification or WAL message
//! that such a session is not allowed.
//!
//! In reading order:
//! - [`conversation`]: what a client says, as data. [`words`]: its SQL.
//! - [`generator`]: a conversation from a seed; [`fragments`]: the beginnings of ways around; `moves`: those of a
//!   session that holds a token; `walk`: transactions whose steps fit to each other; [`steering`]: settings that change
//!   where no text shows it; [`tables`]: names that mean one table or another.
//! - [`world`]: a server with something to write to, and the proxy. [`runner`]: one conversation there.
//! - [`judge`]: what it has changed, and whether it may.
//! - [`twin`]: whether a session that may do all hears the same as without the proxy.
//! - [`trial`]: both together. [`shrinker`]: the shortest conversation that still does it.
//! - [`needless`]: refusals of what would have written nothing.
//! - [`run`]: many of them, in parallel.

mod moves;
mod walk;

pub mod conversation;
pub mod fragments;
pub mod generator;
pub mod judge;
pub mod needless;
pub mod purpose;
pub mod run;
pub mod runner;
pub mod shrinker;
pub mod steering;
pub mod tables;
pub mod trial;
pub mod twin;
pub mod words;
pub mod world;
