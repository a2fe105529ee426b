//! The proof: several leaders on several proxies, faults at random, and a checker of what came out.
//!
//! In reading order:
//! - [`history`]: what a run writes down, and [`checker`]: what must be true of it.
//! - [`plan`]: what is to be run; [`run`]: how, from the start to the verdict.
//! - [`cluster`]: PostgreSQL, a [`store`], proxies, and links between them that [`cutter`] holds or cuts.
//! - [`leader`]: a process that believes that it leads; [`declaration`], `take` and [`shapes`] are what it
//!   does, [`client`] how; [`leaders`]: those that run.
//! - [`row_writers`]: two leaders that share one row.
//! - [`nemesis`]: what breaks things, until the [`stop`].
//! - [`truth`]: what PostgreSQL has committed, and in which order; [`surviving`]: the same behind failovers.
//!
//! The seed fixes every choice and the order of choices in each thread. How threads and processes fall together
//! is left to the machine, so that two runs with one seed are alike, not equal.

pub mod checker;
pub mod client;
pub mod cluster;
pub mod cutter;
pub mod declaration;
pub mod history;
pub mod leader;
pub mod leaders;
pub mod nemesis;
pub mod plan;
pub mod row_writers;
pub mod run;
pub mod shapes;
pub mod stop;
pub mod store;
pub mod surviving;
mod take;
pub mod truth;
