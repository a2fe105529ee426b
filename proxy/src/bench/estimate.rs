//! What a row of numbers, one for each round, says about the number behind them. Pure.
//!
//! The estimate is the median of the rounds. Its interval is the exact one for a median: with `n` rounds, the number
//! of them below the true median is binomial with one half, whatever the rounds' distribution is, so the interval
//! from the `k`-th lowest to the `k`-th highest misses it with probability `2 P(B(n, 1/2) < k)`. `k` is the largest for
//! which that is at most 5 %. A few rounds that a checkpoint has spoiled do not move it, as they would a mean. What it
//! assumes is that rounds do not depend on each other.

use serde::Serialize;

/// How often an interval may miss.
const MISS: f64 = 0.05;

/// A median over rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Estimate {
    pub(crate) median: f64,
    /// The 95 % confidence interval; `None` where there are too few rounds for one.
    pub(crate) interval: Option<Interval>,
}

/// Both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Estimate {
    /// Of at least one round; `None` of none.
    pub(crate) fn of(rounds: &[f64]) -> Option<Self> {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied();
        let last = sorted.len().checked_sub(1)?;
        let middle = (at(last / 2)?, at(last.div_ceil(2))?);
        let interval = depth(sorted.len()).and_then(|depth| {
            let (low, high) = (at(depth - 1)?, at(sorted.len() - depth)?);
            Some(Interval { low, high })
        });
        Some(Self {
            median: f64::midpoint(middle.0, middle.1),
            interval,
        })
    }

    /// What the interval of a difference says.
    pub(crate) fn verdict(&self) -> Verdict {
        match self.interval {
            None => Verdict::TooFewRounds,
            Some(Interval { low, high }) if low <= 0.0 && high >= 0.0 => Verdict::NoneMeasurable,
            Some(_) => Verdict::Measured,
        }
    }
}

/// Whether there is a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The interval does not contain 0.
    Measured,
    /// It does.
    NoneMeasurable,
    /// There is no interval.
    TooFewRounds,
}

/// The fewest rounds that give an interval.
pub(crate) const ROUNDS_FOR_INTERVAL: usize = 6;

/// How many rounds from either end the interval begins, from 1. `None`: even the whole range would miss too often.
fn depth(rounds: usize) -> Option<usize> {
    let n = i32::try_from(rounds).ok()?;
    // P(B = 0), then each from the one before it. At 1000 rounds, the most that there are, 2^-1000 is still a number.
    let mut term = 0.5_f64.powi(n);
    let mut below = 0.0;
    let mut depth = 0;
    for successes in 0..rounds {
        below += term;
        if 2.0 * below > MISS {
            break;
        }
        depth = successes + 1;
        term *= (rounds - successes) as f64 / (successes + 1) as f64;
    }
    (depth > 0).then_some(depth)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the sign test, two-sided, 5 %: the critical value is one less than the depth.
    #[test]
    fn depths_are_those_of_the_sign_test() {
        for (rounds, critical) in [
            (6, 0),
            (7, 0),
            (8, 0),
            (9, 1),
            (10, 1),
            (11, 1),
            (12, 2),
            (13, 2),
            (14, 2),
            (15, 3),
            (16, 3),
            (17, 4),
            (18, 4),
            (19, 4),
            (20, 5),
            (25, 7),
            (30, 9),
            (40, 13),
            (50, 17),
            (60, 21),
            (80, 30),
            (100, 39),
        ] {
            assert_eq!(depth(rounds), Some(critical + 1), "{rounds} rounds");
        }
        for rounds in 0..ROUNDS_FOR_INTERVAL {
            assert_eq!(depth(rounds), None, "{rounds} rounds");
        }
        assert_eq!(depth(1000), Some(469));
    }

    #[track_caller]
    fn check(rounds: &[f64], median: f64, interval: Option<(f64, f64)>) {
        let interval = interval.map(|(low, high)| Interval { low, high });
        assert_eq!(Estimate::of(rounds), Some(Estimate { median, interval }));
    }

    #[test]
    fn medians_and_intervals() {
        assert_eq!(Estimate::of(&[]), None);
        check(&[3.0], 3.0, None);
        check(&[4.0, 3.0], 3.5, None);
        check(&[5.0, 1.0, 3.0], 3.0, None);
        check(&[5.0, 1.0, 3.0, 4.0, 2.0], 3.0, None);
        check(&[6.0, 5.0, 1.0, 3.0, 4.0, 2.0], 3.5, Some((1.0, 6.0)));
        // One round in nine may be spoiled at either end.
        let nine = [1e9, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, -1e9];
        check(&nine, 5.0, Some((2.0, 8.0)));
        let twelve: Vec<f64> = (1..=12).map(f64::from).collect();
        check(&twelve, 6.5, Some((3.0, 10.0)));
    }

    #[test]
    fn a_difference_with_zero_in_its_interval_is_none() {
        let verdict = |rounds: &[f64]| Estimate::of(rounds).unwrap().verdict();
        assert_eq!(verdict(&[1.0; 5]), Verdict::TooFewRounds);
        assert_eq!(verdict(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), Verdict::Measured);
        assert_eq!(
            verdict(&[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]),
            Verdict::Measured
        );
        assert_eq!(
            verdict(&[-1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            Verdict::NoneMeasurable
        );
        assert_eq!(
            verdict(&[0.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            Verdict::NoneMeasurable
        );
        assert_eq!(verdict(&[0.0; 6]), Verdict::NoneMeasurable);
    }

    /// Of many samples with a known median, at most 5 % of the intervals miss it.
    #[test]
    fn the_interval_covers_as_often_as_it_says() {
        use rand::{Rng, SeedableRng, rngs::StdRng};
        let mut random = StdRng::seed_from_u64(7);
        for rounds in [6, 9, 12, 20] {
            let missed = (0..4000)
                .filter(|_| {
                    // Skewed, as latencies are: the median of -ln(u) is ln 2.
                    let sample: Vec<f64> = (0..rounds)
                        .map(|_| -(1.0 - random.random::<f64>()).ln())
                        .collect();
                    let Interval { low, high } = Estimate::of(&sample).unwrap().interval.unwrap();
                    !(low..=high).contains(&std::f64::consts::LN_2)
                })
                .count();
            // 5 % of 4000 is 200, with a standard deviation of 14.
            assert!(
                (20..250).contains(&missed),
                "{rounds} rounds: {missed} of 4000 missed"
            );
        }
    }
}
