//! The proof: several leaders on several proxies, random faults, and a checker of the result.
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
pub mod listeners;
pub mod nemesis;
pub mod plan;
mod program;
pub mod row_writers;
pub mod run;
pub mod shapes;
pub mod stop;
pub mod store;
pub mod surviving;
mod take;
pub mod truth;
