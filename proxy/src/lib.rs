//! The program pgpalisade.
//!
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
mod reload;
mod serve;
mod service_manager;
mod store;
