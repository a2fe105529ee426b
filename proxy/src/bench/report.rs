//! What all rounds say together. Pure.

use serde::Serialize;

use super::Plan;
use super::load::{Protocol, Workload};
use super::rounds::Round;
use super::survey::{Proof, Survey, Way};

/// Everything that was measured. This is what `--json` prints.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    pub(crate) direct: Way,
    pub(crate) proxied: Way,
    pub(crate) same_server: Proof,
    pub(crate) workload: Workload,
    pub(crate) protocol: Protocol,
    pub(crate) clients: usize,
    /// Those that were complete.
    pub(crate) rounds: usize,
    /// Fewer than were asked for: it was ended before its time.
    pub(crate) interrupted: bool,
    /// How long each way was measured in a round.
    pub(crate) round_ms: u64,
    /// Statements in a second; then percentiles of the latency, in microseconds.
    pub(crate) rows: Vec<Row>,
}

/// One figure on both ways. All are medians over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) direct: f64,
    pub(crate) proxied: f64,
    /// Proxied less direct, round by round.
    pub(crate) difference: f64,
    /// Its least and its most of all rounds.
    pub(crate) spread: (f64, f64),
    /// The difference as a part of direct, in percent.
    pub(crate) percent: f64,
}

/// Which part of the statements is answered within each figure; 1 is the slowest of a round.
const QUANTILES: [(&str, f64); 4] = [
    ("p50 us", 0.5),
    ("p90 us", 0.9),
    ("p99 us", 0.99),
    ("max us", 1.0),
];

impl Row {
    /// Of at least one round, direct and proxied.
    fn of(name: &'static str, rounds: &[(f64, f64)]) -> Option<Self> {
        let sorted = |figure: &dyn Fn(&(f64, f64)) -> f64| {
            let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures
        };
        let differences = sorted(&|(direct, proxied)| proxied - direct);
        let percent = |(direct, proxied): &(f64, f64)| {
            (proxied - direct) / direct.max(f64::MIN_POSITIVE) * 100.0
        };
        Some(Self {
            name,
            direct: middle(&sorted(&|(direct, _)| *direct))?,
            proxied: middle(&sorted(&|(_, proxied)| *proxied))?,
            difference: middle(&differences)?,
            spread: (*differences.first()?, *differences.last()?),
            percent: middle(&sorted(&percent))?,
        })
    }

    /// Some rounds had more on one way and some on the other: the difference may be chance.
    pub(crate) fn may_be_chance(&self) -> bool {
        let (least, most) = self.spread;
        least <= 0.0 && most >= 0.0
    }
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(
        *sorted.get(last / 2)?,
        *sorted.get(last.div_ceil(2))?,
    ))
}

/// `None`: there is not one round.
pub(super) fn of(plan: &Plan, survey: Survey, rounds: &[Round]) -> Option<Report> {
    let row = |name, figure: &dyn Fn(&Round) -> (f64, f64)| {
        Row::of(name, &rounds.iter().map(figure).collect::<Vec<_>>())
    };
    let mut rows = vec![row("statements/s", &Round::throughput)?];
    for (name, quantile) in QUANTILES {
        rows.push(row(name, &|round| round.latency(quantile))?);
    }
    Some(Report {
        direct: survey.direct,
        proxied: survey.proxied,
        same_server: survey.same_server,
        workload: plan.workload,
        protocol: plan.protocol,
        clients: plan.clients,
        rounds: rounds.len(),
        interrupted: rounds.len() < plan.rounds,
        round_ms: u64::try_from(plan.length.as_millis()).unwrap_or(u64::MAX),
        rows,
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
            (500.0, 510.0),
        ];
        let row = Row::of("p50 us", &rounds).unwrap();
        assert_eq!((row.direct, row.proxied), (200.0, 211.0));
        assert_eq!((row.difference, row.spread), (10.0, (9.0, 12.0)));
        assert_eq!(row.percent, 5.5);
        assert!(!row.may_be_chance());
        assert_eq!(Row::of("p50 us", &rounds[..2]).unwrap().difference, 10.5);
        assert!(Row::of("p50 us", &[]).is_none());
        let row = Row::of("p50 us", &[(100.0, 90.0), (100.0, 110.0)]).unwrap();
        assert!(row.may_be_chance());
    }
}
