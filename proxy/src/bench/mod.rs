//! Measurement of what pgpalisade adds in the environment of a user: two paths to one server, in turns.
//!
//! - `target`, `survey`: the two connection strings, and their checks.
//! - `load`: every statement that is sent. `client`: a session that repeats one.
//! - `rounds`: the turns of a whole measurement, in their order.
//! - `report`: the result of all rounds.
//!
//! The paths take turns, and every second round begins with the other one, so that other load on the machine meets
//! both. Each round gives one difference; the report is made of these.

mod client;
mod error;
mod load;
mod report;
mod rounds;
mod survey;
mod target;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub(crate) use error::BenchError;
pub(crate) use load::{Protocol, Workload};
pub(crate) use report::{BenchReport, Comparison};
pub(crate) use rounds::Round;
pub(crate) use survey::{Proof, Survey, Way};
pub(crate) use target::{BenchTarget, Path, TokenFlag};

#[derive(Debug, Clone)]
pub(crate) struct BenchConfig {
    pub(crate) direct: BenchTarget,
    pub(crate) proxied: BenchTarget,
    pub(crate) workload: Workload,
    pub(crate) protocol: Protocol,
    /// Sessions on each path.
    pub(crate) clients: usize,
    pub(crate) rounds: usize,
    /// Measured time of each path in a round.
    pub(crate) length: Duration,
}

/// Progress.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event<'a> {
    /// Both paths work, and lead to the same server.
    Surveyed,
    /// Both paths have had their turn. Rounds count from 1.
    Round(usize, &'a Round),
}

/// Measures, and reports progress. If `stop` is cancelled, it ends with the rounds that are complete.
///
/// # Errors
/// If a path is not what it should be, if one fails, or if no round is complete.
pub(crate) async fn run(
    plan: &BenchConfig,
    stop: &CancellationToken,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<BenchReport, BenchError> {
    let survey = rounds::unless(stop, survey::look(&plan.direct, &plan.proxied)).await?;
    tell(Event::Surveyed);
    let rounds = rounds::measure(plan, stop, tell).await?;
    report::of(plan, survey, &rounds).ok_or(BenchError::Interrupted)
}
