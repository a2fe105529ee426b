//! The proof: several leaders on several proxies, random faults, and a checker of the result.
//!
//! In reading order:
//! - [`history`]: what a run records, and [`checker`]: what must hold for it.
//! - [`plan`]: what to run; [`run`]: how, from the start to the verdict.
//! - [`cluster`]: PostgreSQL, a [`store`], proxies, and links between them that [`cutter`] holds or cuts.
//! - [`leader`]: a process that believes that it leads; [`declaration`], `take` and [`shapes`] are what it does,
//!   [`client`] how; [`leaders`]: the running leader processes.
//! - [`row_writers`]: two leaders that share one row.
//! - [`nemesis`]: the faults, until the [`stop`].
//! - [`truth`]: what PostgreSQL has committed, and in which order; [`surviving`]: the same after failovers.
//!
//! The seed fixes every choice, and the order of choices in each thread. The machine schedules threads and processes,
//! so two runs with one seed are similar, not equal.

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
