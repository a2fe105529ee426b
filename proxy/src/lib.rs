//! The program pgpalisade: a proxy for PostgreSQL that refuses the writes of a leader that has been deposed.
//!
//! The way of a message is in crates of their own, `server` above all. Here is what is around it: `serve` runs
//! listeners, workers and takeovers, with the `store` and the policy that the configuration names; `console` and
//! `http` show what there is; `inspect` looks at all of it for `check` and `status`; `elect` runs a
//! command while it leads; `bench` measures as a client does. `config`, `cli`, `logging` and `demo` are the
//! command line. `ARCHITECTURE.md` has the map and the invariants.

mod bench;
pub mod cli;
mod config;
mod console;
pub mod demo;
mod elect;
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
