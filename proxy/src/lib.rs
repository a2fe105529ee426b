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
mod policy_file;
mod process;
mod serve;
mod service_manager;
mod signals;
mod store;

use pgpalisade_fence as fence;
use pgpalisade_fence::rejection;
use pgpalisade_rejection_log as rejection_log;
use pgpalisade_server as server;
use pgpalisade_takeover as takeover;
use pgpalisade_wire as wire;
