//! Measurement of what pgpalisade adds in the environment of a user: two paths to one server, in turns.
//!
//! - `target`, `connection`, `survey`: the two logins, their sessions, and the checks of both.
//! - `statements`: every statement that is sent. `load_client`: a session that repeats one.
//! - `rounds`: the turns of a whole measurement, in their order.
//! - `report`: the result of all rounds.
//!
//! The paths take turns, and every second round begins with the other one, so that other load on the machine meets
//! both. Each round gives one difference; the report is made of these.

mod connection;
mod error;
mod load_client;
mod report;
mod rounds;
mod statements;
mod survey;
mod target;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use error::BenchError;
pub use report::{BenchReport, Comparison, median};
pub use rounds::Round;
pub use statements::{Protocol, Workload};
pub use survey::{Proof, Survey, Way};
pub use target::{BenchTarget, Path, TokenFlag};

/// What to measure, and for how long.
#[derive(Debug, Clone)]
pub struct BenchConfig {
    /// The path to PostgreSQL itself.
    pub direct: BenchTarget,
    /// The path through pgpalisade.
    pub proxied: BenchTarget,
    /// What is measured.
    pub workload: Workload,
    /// How it is sent.
    pub protocol: Protocol,
    /// Sessions on each path.
    pub clients: usize,
    /// Turns of each path.
    pub rounds: usize,
    /// Measured time of each path in a round.
    pub length: Duration,
}

/// Progress.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// Both paths work, and lead to the same server.
    Surveyed,
    /// Both paths have had their turn. Rounds count from 1.
    Round(usize, &'a Round),
}

/// Measures, and reports progress. If `stop` is cancelled, it ends with the rounds that are complete.
///
/// # Errors
/// If a path is not what it should be, if one fails, or if no round is complete.
pub async fn run(
    plan: &BenchConfig,
    stop: &CancellationToken,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<BenchReport, BenchError> {
    let survey = rounds::unless(stop, survey::look(&plan.direct, &plan.proxied)).await?;
    tell(Event::Surveyed);
    let rounds = rounds::measure(plan, stop, tell).await?;
    report::of(plan, survey, &rounds).ok_or(BenchError::Interrupted)
}
