//! What all rounds say together. Pure.

use serde::Serialize;

use super::estimate::{Estimate, Verdict};
use super::load::{Protocol, Workload};
use super::rounds::Round;
use super::survey::{Proof, Survey, Way};
use super::{Plan, warnings};

/// Everything that was measured. This is what `--json` prints.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    /// It was ended before its time; there are fewer rounds than were asked for.
    pub(crate) interrupted: bool,
    pub(crate) direct: Way,
    pub(crate) proxied: Way,
    pub(crate) same_server: Proof,
    pub(crate) load: Load,
    /// Statements per second, in a closed loop.
    pub(crate) throughput: Throughput,
    /// Microseconds, in an open loop; `None` where it was interrupted before.
    pub(crate) latency: Option<Latencies>,
    /// What makes the figures doubtful.
    pub(crate) warnings: Vec<String>,
}

/// With what it was measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Load {
    pub(crate) workload: Workload,
    pub(crate) protocol: Protocol,
    pub(crate) clients: usize,
    pub(crate) threads: usize,
    /// How long each way was measured in a round.
    pub(crate) round_ms: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Throughput {
    pub(crate) rounds: usize,
    #[serde(flatten)]
    pub(crate) row: Row,
}

impl Throughput {
    pub(super) fn slower(&self) -> f64 {
        self.row.direct.median.min(self.row.proxied.median)
    }
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Latencies {
    pub(crate) rounds: usize,
    /// Statements that were due in a second.
    pub(crate) rate: f64,
    pub(crate) rows: Vec<Row>,
    /// The longest of all rounds, direct and proxied.
    pub(crate) longest: (f64, f64),
}

/// One figure on both ways.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) direct: Estimate,
    pub(crate) proxied: Estimate,
    /// Proxied less direct, round by round.
    pub(crate) difference: Estimate,
    /// The same as a part of direct, in percent.
    pub(crate) percent: Estimate,
    pub(crate) verdict: Verdict,
}

impl Row {
    /// Of at least one round.
    fn of(name: &'static str, rounds: &[(f64, f64)]) -> Option<Self> {
        let of = |figure: &dyn Fn(&(f64, f64)) -> f64| {
            let figures: Vec<f64> = rounds.iter().map(figure).collect();
            Estimate::of(&figures)
        };
        let difference = of(&|(direct, proxied)| proxied - direct)?;
        Some(Self {
            name,
            direct: of(&|(direct, _)| *direct)?,
            proxied: of(&|(_, proxied)| *proxied)?,
            difference,
            percent: of(&|(direct, proxied)| {
                (proxied - direct) / direct.max(f64::MIN_POSITIVE) * 100.0
            })?,
            verdict: difference.verdict(),
        })
    }
}

/// Which part of the statements is answered within each figure; 1 is the slowest of a round.
const QUANTILES: [(&str, f64); 5] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("max", 1.0),
];

/// Of at least one round.
pub(super) fn throughput(rounds: &[Round]) -> Option<Throughput> {
    let figures: Vec<_> = rounds.iter().map(Round::throughput).collect();
    Some(Throughput {
        rounds: rounds.len(),
        row: Row::of("throughput", &figures)?,
    })
}

/// Of at least one round.
pub(super) fn latencies(rounds: &[Round], rate: f64) -> Option<Latencies> {
    let fewest = rounds
        .iter()
        .flat_map(Round::both)
        .map(|tally| tally.due())
        .min()? as f64;
    let rows = QUANTILES.iter().filter_map(|&(name, quantile)| {
        // Below this there is no statement behind the quantile, and it would only repeat the slowest.
        let enough = quantile >= 1.0 || fewest * (1.0 - quantile) >= 1.0;
        let figures = || {
            rounds
                .iter()
                .map(|round| round.latency(quantile))
                .collect::<Vec<_>>()
        };
        enough.then(|| Row::of(name, &figures())).flatten()
    });
    let longest = |of: &dyn Fn(&Round) -> f64| rounds.iter().map(of).fold(0.0, f64::max);
    Some(Latencies {
        rounds: rounds.len(),
        rate,
        rows: rows.collect(),
        longest: (
            longest(&|round| round.latency(1.0).0),
            longest(&|round| round.latency(1.0).1),
        ),
    })
}

/// `None`: there is not one round.
pub(super) fn of(
    plan: &Plan,
    survey: Survey,
    rate: f64,
    closed: &[Round],
    open: &[Round],
    interrupted: bool,
) -> Option<Report> {
    let latency = latencies(open, rate);
    let warnings = warnings::of(&survey, closed, open, latency.as_ref());
    Some(Report {
        interrupted,
        direct: survey.direct,
        proxied: survey.proxied,
        same_server: survey.same_server,
        load: Load {
            workload: plan.workload,
            protocol: plan.protocol,
            clients: plan.clients,
            threads: plan.threads,
            round_ms: u64::try_from(plan.length.as_millis()).unwrap_or(u64::MAX),
        },
        throughput: throughput(closed)?,
        latency,
        warnings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What every way has in common, a bad minute of the machine, is not in the difference.
    #[test]
    fn rounds_are_compared_in_pairs() {
        let rounds = [
            (100.0, 110.0),
            (200.0, 211.0),
            (300.0, 312.0),
            (150.0, 159.0),
            (120.0, 130.0),
            (500.0, 510.0),
        ];
        let row = Row::of("p50", &rounds).unwrap();
        assert_eq!((row.direct.median, row.proxied.median), (175.0, 185.0));
        assert_eq!(row.difference.median, 10.0);
        let interval = row.difference.interval.unwrap();
        assert_eq!((interval.low, interval.high), (9.0, 12.0));
        assert_eq!(row.verdict, Verdict::Measured);
        assert_eq!(row.percent.interval.unwrap().high, 10.0);
        assert!(Row::of("p50", &[]).is_none());
        assert_eq!(
            Row::of("p50", &rounds[..5]).unwrap().verdict,
            Verdict::TooFewRounds
        );
    }
}
