//! The oracle of mediation: random conversations that nobody would write by hand, with the database as the judge.
//!
//! A session that may not write sends all kinds of messages and SQL, in any grouping. Afterwards PostgreSQL must hold
//! no row, transaction id, large object, notification or WAL message that the session was not allowed to write.
//!
//! In reading order:
//! - [`conversation`]: what a client sends, as data. [`words`]: its SQL.
//! - [`generator`]: a conversation from a seed; [`fragments`]: beginnings of bypasses; `moves`: moves of a session
//!   that holds a token; `walk`: transactions with steps that fit together; [`steering`]: settings that change
//!   without any text showing it; [`tables`]: names that resolve to one table or another.
//! - [`world`]: a server with something to write to, and the proxy. [`runner`]: one conversation there.
//! - [`judge`]: what the conversation changed, and whether it was allowed to.
//! - [`twin`]: whether a session that may do everything gets the same replies as without the proxy.
//! - [`trial`]: both together. [`shrinker`]: the shortest conversation that still fails.
//! - [`needless`]: refusals of statements that would have written nothing.
//! - [`run`]: many conversations, in parallel.

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
