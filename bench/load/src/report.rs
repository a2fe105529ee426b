//! The result of all rounds.

use serde::Serialize;

use crate::BenchConfig;
use crate::rounds::{Round, Turn};
use crate::statements::{Protocol, Workload};
use crate::survey::Survey;

/// As `--json` prints it.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    #[serde(flatten)]
    pub survey: Survey,
    pub workload: Workload,
    pub protocol: Protocol,
    pub clients: usize,
    pub rounds: usize,
    /// There are fewer rounds than requested.
    pub interrupted: bool,
    pub round_ms: u64,
    /// Statements per second; then the mean, percentiles and maximum of the latency, in microseconds.
    pub rows: Vec<Comparison>,
}

/// One figure on both paths: medians over the rounds, rounded to hundredths.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub name: &'static str,
    pub direct: f64,
    pub proxied: f64,
    /// Proxied minus direct, round by round.
    pub difference: f64,
    /// Least and greatest difference of all rounds.
    pub spread: (f64, f64),
    /// Percent of direct.
    pub percent: f64,
    /// More rounds agree on the sign of the difference than chance would explain.
    pub significant: bool,
}

type Figure = (&'static str, fn(&Turn) -> f64);

const FIGURES: [Figure; 6] = [
    ("statements/s", |turn| turn.throughput),
    ("mean us", |turn| turn.mean),
    ("p50 us", |turn| turn.p50),
    ("p90 us", |turn| turn.p90),
    ("p99 us", |turn| turn.p99),
    ("max us", |turn| turn.max),
];

impl Comparison {
    /// Each round gives a pair: direct, proxied.
    fn of(name: &'static str, rounds: &[(f64, f64)]) -> Option<Self> {
        let middle = |figure: &dyn Fn(&(f64, f64)) -> f64| {
            let figures: Vec<f64> = rounds.iter().map(figure).collect();
            median(&figures).map(hundredths)
        };
        let difference = |(direct, proxied): &(f64, f64)| proxied - direct;
        let mut differences: Vec<f64> = rounds.iter().map(difference).collect();
        differences.sort_by(f64::total_cmp);
        let percent = |(direct, proxied): &(f64, f64)| {
            (proxied - direct) / direct.max(f64::MIN_POSITIVE) * 100.0
        };
        Some(Self {
            name,
            direct: middle(&|(direct, _)| *direct)?,
            proxied: middle(&|(_, proxied)| *proxied)?,
            difference: middle(&difference)?,
            spread: (
                hundredths(*differences.first()?),
                hundredths(*differences.last()?),
            ),
            percent: middle(&percent)?,
            significant: is_significant(&differences),
        })
    }
}

/// The two-sided sign test at 5 %, by its normal approximation with the correction for continuity. Fewer than six
/// rounds are never significant.
fn is_significant(differences: &[f64]) -> bool {
    let more = differences.iter().filter(|found| **found > 0.0).count();
    let less = differences.iter().filter(|found| **found < 0.0).count();
    more.abs_diff(less) as f64 - 1.0 > 1.96 * ((more + less) as f64).sqrt()
}

#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(
        *sorted.get(last / 2)?,
        *sorted.get(last.div_ceil(2))?,
    ))
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

pub(crate) fn of(plan: &BenchConfig, survey: Survey, rounds: &[Round]) -> Option<BenchReport> {
    let rows = FIGURES.map(|(name, figure)| {
        let both = |round: &Round| (figure(&round.direct), figure(&round.proxied));
        Comparison::of(name, &rounds.iter().map(both).collect::<Vec<_>>())
    });
    Some(BenchReport {
        survey,
        workload: plan.workload,
        protocol: plan.protocol,
        clients: plan.clients,
        rounds: rounds.len(),
        interrupted: rounds.len() < plan.rounds,
        round_ms: u64::try_from(plan.length.as_millis()).unwrap_or(u64::MAX),
        rows: rows.into_iter().collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slow minute of the machine affects both paths and cancels out.
    #[test]
    fn rounds_are_compared_in_pairs() {
        let rounds = [
            (100.0, 110.0),
            (200.0, 211.0),
            (300.0, 312.0),
            (150.0, 159.0),
            (500.0, 510.0),
        ];
        let row = Comparison::of("p50 us", &rounds).unwrap();
        assert_eq!((row.direct, row.proxied), (200.0, 211.0));
        assert_eq!((row.difference, row.spread), (10.0, (9.0, 12.0)));
        assert_eq!(row.percent, 5.5);
        assert_eq!(
            Comparison::of("p50 us", &rounds[..2]).unwrap().difference,
            10.5
        );
        assert!(Comparison::of("p50 us", &[]).is_none());
        let row = Comparison::of("p50 us", &[(3.0, 3.0 + 1.0 / 3.0)]).unwrap();
        assert_eq!((row.proxied, row.percent), (3.33, 11.11));
    }

    /// For a significant split, the exact two-sided chance of one at least as uneven is below 5 %.
    #[test]
    fn few_rounds_and_mixed_signs_are_not_significant() {
        for (more, less, same, expect) in [
            (1, 0, 0, false),
            (5, 0, 0, false),
            (6, 0, 0, true),
            (0, 6, 6, true),
            (5, 0, 7, false),
            (9, 3, 0, false),
            (10, 2, 0, true),
            (2, 10, 0, true),
            (59, 41, 0, false),
            (61, 39, 0, true),
            (0, 0, 12, false),
        ] {
            let differences = [vec![1.0; more], vec![-1.0; less], vec![0.0; same]].concat();
            assert_eq!(
                is_significant(&differences),
                expect,
                "{more}, {less}, {same}"
            );
        }
    }
}
