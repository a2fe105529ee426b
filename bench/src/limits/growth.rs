//! Memory of a target's process while something is done with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgpalisade_bench::targets::Target;
use pgpalisade_bench::{Error, memory};

use crate::drive::{Done, timed};

/// What was done, and what the process has grown by meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) done: Done,
    /// The most that was seen, less what it was before. Zero for a target without a process.
    pub(crate) growth_kib: u64,
}

/// Does `work`, and looks at the memory of the process `every` so often.
pub(crate) fn sampled(
    target: &Target,
    every: Duration,
    work: impl FnOnce() -> Result<u64, Error>,
) -> Result<Sample, Error> {
    let Some(pid) = target.pid() else {
        return Ok(Sample {
            done: timed(target, work)?,
            growth_kib: 0,
        });
    };
    let before = memory::resident_kib(pid)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let watcher = threads.spawn(|| {
            let mut most = before;
            loop {
                // One that has ended grows no more; the work will say so.
                most = most.max(memory::resident_kib(pid).unwrap_or(most));
                if over.load(Ordering::Relaxed) {
                    return most;
                }
                std::thread::park_timeout(every);
            }
        });
        let done = timed(target, work);
        over.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        let most = watcher.join();
        let most = most.map_err(|_| Error::Round("the watcher panicked".to_owned()))?;
        Ok(Sample {
            done: done?,
            growth_kib: most - before,
        })
    })
}
