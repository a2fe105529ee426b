//! Time of a call, from samples of many calls.

use std::time::Duration;

/// Runs a case so often, and says how long that took.
pub(crate) type Run = Box<dyn FnMut(u64) -> Duration>;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    samples: usize,
    sample: Duration,
}

impl Effort {
    /// For figures.
    pub(crate) const FULL: Self = Self {
        samples: 21,
        sample: Duration::from_millis(20),
    };
    /// To see that it runs.
    pub(crate) const QUICK: Self = Self {
        samples: 1,
        sample: Duration::ZERO,
    };
}

/// Nanoseconds of a call, one for each sample, the least first.
pub(crate) fn sample(run: &mut Run, effort: Effort) -> Vec<f64> {
    // So many calls that one sample is far longer than what the clock and the loop add. This also warms up.
    let mut calls = 1;
    while run(calls) < effort.sample {
        calls *= 2;
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53 nanoseconds")]
    let mut samples: Vec<f64> = (0..effort.samples)
        .map(|_| run(calls).as_nanos() as f64 / calls as f64)
        .collect();
    samples.sort_by(f64::total_cmp);
    samples
}
