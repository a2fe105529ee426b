//! The oracle of mediation: random conversations, with the database as the judge.
//!
//! A session that may not write sends all kinds of messages and SQL, in any grouping. Afterwards PostgreSQL must hold
//! no row, transaction id, large object, notification or WAL message that the session was not allowed to write.
//!
//! - [`generator`] makes a [`conversation`] from a seed, of [`words`], [`fragments`], [`steering`] settings and
//!   confusable [`tables`].
//! - [`runner`] plays it in a [`world`], [`judge`] finds what it changed, [`twin`] compares the replies with those
//!   without the proxy. [`trial`] does all of it, and [`run`] many in parallel.
//! - [`shrinker`] finds the shortest conversation that still fails, [`needless`] refusals of harmless statements.

mod moves;
mod walk;

pub mod conversation;
pub mod fragments;
pub mod generator;
pub mod judge;
pub mod needless;
pub mod run;
pub mod runner;
pub mod shrinker;
pub mod steering;
pub mod tables;
pub mod trial;
pub mod twin;
pub mod words;
pub mod world;
