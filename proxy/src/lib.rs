//! The program pgpalisade: a proxy for PostgreSQL that refuses the writes of a deposed leader.
//!
//! Separate crates carry messages, above all `server`. The modules here surround them: `serve` runs listeners,
//! workers and takeovers, with the configured `store` and policy; `console` and `http` show the state; `inspect`
//! examines all of it for `check` and `status`. `config`, `cli`, `logging` and `demo` are the command line.
//! `ARCHITECTURE.md` has the map and the invariants.

pub mod cli;
mod config;
mod console;
pub mod demo;
mod elections;
mod handover;
mod http;
mod in_force;
mod inspect;
mod local;
mod logging;
mod newest;
mod policy_file;
mod process;
mod serve;
mod service_manager;
mod signals;
mod store;
