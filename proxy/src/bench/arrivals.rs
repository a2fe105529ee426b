//! When statements are due in an open loop. Pure.
//!
//! They come as those of many independent clients would: with exponential gaps (a Poisson process). The times follow
//! from a seed alone, so both paths of a round get the same ones, and nothing that the server does moves them: a
//! server that stalls makes the statements wait that were due meanwhile, and all of that waiting is measured. (A
//! generator that waits for an answer before it sends the next leaves just these out: coordinated omission.)

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The times of one turn, counted from its beginning, rising.
#[derive(Debug)]
pub(super) struct Arrivals {
    random: StdRng,
    /// The mean gap, in seconds.
    gap: f64,
    /// The last one given, in seconds.
    last: f64,
    length: Duration,
}

impl Arrivals {
    /// `rate` of them in a second, over `length`.
    pub(super) fn new(seed: u64, rate: f64, length: Duration) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            gap: rate.recip(),
            last: 0.0,
            length,
        }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        // 1 - u is never 0.
        self.last -= (1.0 - self.random.random::<f64>()).ln() * self.gap;
        let at = Duration::try_from_secs_f64(self.last).ok()?;
        (at < self.length).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn all(seed: u64, rate: f64, length: Duration) -> Vec<Duration> {
        Arrivals::new(seed, rate, length).collect()
    }

    #[test]
    fn the_seed_says_it_all() {
        assert_eq!(all(1, 1000.0, SECOND), all(1, 1000.0, SECOND));
        assert_ne!(all(1, 1000.0, SECOND), all(2, 1000.0, SECOND));
        assert!(all(1, 1000.0, SECOND).is_sorted());
    }

    #[test]
    fn as_many_as_the_rate_says() {
        for (rate, length, expect) in [
            (1000.0, SECOND, 1000.0),
            (0.5, 20_000 * SECOND, 10_000.0),
            (200_000.0, SECOND / 2, 100_000.0),
        ] {
            let count = all(3, rate, length).len() as f64;
            // The count's standard deviation is its square root.
            assert!(
                (count - expect).abs() < 4.0 * f64::sqrt(expect),
                "{rate}: {count}"
            );
        }
        assert!(all(1, 1000.0, Duration::ZERO).is_empty());
        assert!(all(1, 1e-9, SECOND).is_empty());
    }

    /// Gaps of a Poisson process: as much spread as mean, and e^-2 of them longer than twice the mean.
    #[test]
    fn gaps_are_exponential() {
        let times = all(5, 100_000.0, SECOND);
        let gaps: Vec<f64> = times
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).as_secs_f64())
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let spread =
            (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((spread / mean - 1.0).abs() < 0.03, "{spread} of {mean}");
        let long = gaps.iter().filter(|gap| **gap > 2.0 * mean).count() as f64 / gaps.len() as f64;
        assert!((long - (-2.0_f64).exp()).abs() < 0.01, "{long}");
    }
}
