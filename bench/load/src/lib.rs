//! Measurement of what pgpalisade adds in a user's environment: two paths to one server, in turns.
//!
//! The paths take turns, and every second round begins with the other one, so that other load on the machine affects
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
pub use survey::{Survey, Way};
pub use target::{BenchTarget, Path, TokenFlag};

#[derive(Debug, Clone)]
pub struct BenchConfig {
    pub direct: BenchTarget,
    pub proxied: BenchTarget,
    pub workload: Workload,
    pub protocol: Protocol,
    pub clients: usize,
    pub rounds: usize,
    pub length: Duration,
}

#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// Both paths work, and lead to the same server.
    Surveyed,
    /// Rounds count from 1.
    Round(usize, &'a Round),
}

/// Measures, and reports progress. If `stop` is cancelled, it ends with the complete rounds.
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
