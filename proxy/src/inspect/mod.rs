//! Looking at a set-up without changing it: what `check` and `status` report.
//!
//! No lock is taken, nothing is enrolled, no table is made. Every statement runs in a READ ONLY transaction with a
//! timeout of its own, so that even a pooler in between keeps nothing of it.

pub(crate) mod check;
pub(crate) mod cluster;
mod connection;
mod finding;
mod greeting;
pub(crate) mod hosts;
pub(crate) mod status;
mod store;

pub(crate) use finding::{Check, Finding, Outcome};

use std::time::Duration;

use crate::config::Config;

/// A connection is made, or a question answered, within this time, or the timeout of takeovers if that is longer: as
/// the control connection of `serve`.
const STEP: Duration = Duration::from_secs(5);

fn step_within(config: &Config) -> Duration {
    config.takeover.timeout.max(STEP)
}
