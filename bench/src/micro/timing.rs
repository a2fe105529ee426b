//! Time of a call, from samples of many calls.

use std::time::Duration;

/// Runs a case so often, and says how long that took.
pub(crate) type Run = Box<dyn FnMut(u64) -> Duration>;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// For figures.
    Full,
    /// To see that it runs.
    Quick,
}

const SAMPLES: usize = 21;

/// How long a sample takes at least.
const SAMPLE: Duration = Duration::from_millis(20);

/// Nanoseconds of one time, of which a call has `times`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Times {
    /// From samples; `None` where there are none.
    pub(crate) fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        Some(Self {
            median: *samples.get(samples.len() / 2)?,
            least: *samples.first()?,
            most: *samples.last()?,
        })
    }
}

pub(crate) fn measure(run: &mut Run, times: u32, effort: Effort) -> Option<Times> {
    let (samples, calls) = match effort {
        Effort::Quick => (1, 1),
        Effort::Full => (SAMPLES, calls_of_a_sample(run)),
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53 nanoseconds")]
    let sample = |_| run(calls).as_nanos() as f64 / calls as f64 / f64::from(times);
    Times::of((0..samples).map(sample).collect())
}

/// So many that one sample is far longer than what the clock and the loop add. To find out also warms up.
fn calls_of_a_sample(run: &mut Run) -> u64 {
    let mut calls = 1;
    while run(calls) < SAMPLE {
        calls *= 2;
    }
    calls
}
