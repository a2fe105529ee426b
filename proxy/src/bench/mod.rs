//! What pgpalisade adds in the environment of a user: two ways to one server, measured in turns.
//!
//! - `target`, `survey`: the two connection strings, and whether they are what they should be.
//! - `load`: every statement that is sent.
//! - `loader`, `session`, `turn`: threads that make the load, in a closed loop for throughput and in an open one for
//!   latency. `arrivals` says when statements are due, `alarm` wakes a session at that moment.
//! - `rounds`: the turns of a whole measurement, in their order.
//! - `estimate`, `report`: what the rounds say together. `machine`, `warnings`: whether to believe it.
//!
//! The ways take turns, and every second round begins with the other one, so that what else the machine does meets
//! both. Each round gives one difference; the report is made of these.

mod alarm;
mod arrivals;
mod error;
mod estimate;
mod load;
mod loader;
mod machine;
mod report;
mod rounds;
mod session;
mod survey;
mod target;
mod turn;
mod warnings;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub(crate) use error::BenchError;
pub(crate) use estimate::{Estimate, Interval, Verdict};
pub(crate) use load::{Protocol, Workload};
pub(crate) use report::{Latencies, Report, Row};
#[cfg(test)]
pub(crate) use report::{Load, Throughput};
pub(crate) use rounds::{Round, THREADS_MAX};
pub(crate) use survey::{Proof, Way};
pub(crate) use target::{Path, Target, TokenFlag};

use rounds::Rounds;

/// A way is warmed up for a round, but no longer than this.
const WARM_UP_MAX: Duration = Duration::from_secs(2);
/// Statements that may be due in a round.
const DUE_MAX: u64 = 10_000_000;

/// What is measured, and how.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) direct: Target,
    pub(crate) proxied: Target,
    pub(crate) workload: Workload,
    pub(crate) protocol: Protocol,
    /// Sessions on each way.
    pub(crate) clients: usize,
    /// Threads that make the load, at most one for each client.
    pub(crate) threads: usize,
    /// Rounds of each part.
    pub(crate) rounds: usize,
    /// How long each way is measured in a round.
    pub(crate) length: Duration,
    /// Statements in a second, for latency. `None`: half of the throughput of the slower way.
    pub(crate) rate: Option<f64>,
}

impl Plan {
    fn warm_up(&self) -> Duration {
        self.length.min(WARM_UP_MAX)
    }

    /// How long it takes, if nothing is late.
    fn total(&self) -> Duration {
        let turns = u32::try_from(self.rounds.saturating_mul(4)).unwrap_or(u32::MAX);
        self.warm_up() * 2 + self.length.saturating_mul(turns)
    }
}

/// What is being done.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event<'a> {
    /// Both ways work, and lead to the same server.
    Surveyed,
    /// A turn begins; `left` is what remains in all.
    Turn {
        stage: Stage,
        rounds: usize,
        path: Path,
        left: Duration,
    },
    /// Both ways have had their turn.
    Round {
        stage: Stage,
        rounds: usize,
        round: &'a Round,
    },
}

/// Where in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    WarmUp,
    /// The number of the round, from 1.
    Throughput(usize),
    /// The number of the round, from 1.
    Latency(usize),
}

/// Measures, and tells what it is doing. When `stop` is cancelled it ends with the rounds that are complete.
///
/// # Errors
/// Where the two ways are not what they should be, or one of them fails, or not one round was complete.
pub(crate) async fn run(
    plan: &Plan,
    stop: &CancellationToken,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Report, BenchError> {
    let due_max = DUE_MAX as f64 / plan.length.as_secs_f64();
    if let Some(rate) = plan.rate.filter(|rate| *rate > due_max) {
        return Err(BenchError::Rate(rate));
    }
    let survey = rounds::unless(stop, survey::look(&plan.direct, &plan.proxied)).await?;
    tell(Event::Surveyed);
    let mut rounds = Rounds::open(plan, stop, tell).await?;
    let throughput = rounds.throughput().await?;
    let half = report::throughput(&throughput)
        .ok_or(BenchError::Interrupted)?
        .slower()
        / 2.0;
    let rate = plan.rate.unwrap_or(half).min(due_max);
    let latency = rounds.latency(rate).await?;
    let interrupted = stop.is_cancelled();
    drop(rounds);
    report::of(plan, survey, rate, &throughput, &latency, interrupted)
        .ok_or(BenchError::Interrupted)
}
