//! Examines a set-up for `check` and `status`.
//!
//! Takes no lock, enrols nothing and creates no table. Every statement runs in its own READ ONLY transaction with a
//! timeout, so that even a pooler retains nothing.

pub(crate) mod check;
pub(crate) mod cluster;
mod finding;
pub(crate) mod hosts;
mod probe;
pub(crate) mod status;
mod store;

pub(crate) use finding::{Check, CheckOutcome, Finding};

use std::time::Duration;

use crate::config::Config;

/// Limit of a connection, and of an answer; or the timeout of takeovers if that is longer.
const STEP: Duration = Duration::from_secs(5);

fn step_within(config: &Config) -> Duration {
    config.takeover.timeout.max(STEP)
}
