//! The time that the proxy adds, without networks and PostgreSQL.

use std::cell::Cell;
use std::time::Instant;

use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// One in this many client reads is timed: reading the clock costs a hundredth of a transaction.
const SAMPLED: u32 = 64;

const DECISION_SECONDS: [f64; 10] = [
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 1e-3, 1e-2, 1e-1,
];

const PREPARATION_SECONDS: [f64; 12] = [
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1.0, 5.0,
];

#[derive(Debug, Clone)]
pub(super) struct AddedTime {
    decision: Histogram,
    preparation: Histogram,
}

impl Default for AddedTime {
    fn default() -> Self {
        Self {
            decision: Histogram::new(DECISION_SECONDS),
            preparation: Histogram::new(PREPARATION_SECONDS),
        }
    }
}

impl AddedTime {
    pub(super) fn register(&self, registry: &mut Registry) {
        let mut register = |name, help, histogram: &Histogram| {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        };
        let help =
            "Time from reading a client's bytes until they are passed on, for one in 64 reads";
        register("decision", help, &self.decision);
        let help = "Time that client messages waited for what had to come first";
        register("preparation", help, &self.preparation);
    }
}

#[derive(Debug)]
pub(crate) struct Clock {
    added: AddedTime,
    reads: Cell<u32>,
}

impl Clock {
    pub(super) const fn new(added: AddedTime) -> Self {
        Self {
            added,
            reads: Cell::new(0),
        }
    }

    /// Counts a read of a client. Returns the time if this read is measured.
    #[inline]
    pub(crate) fn read(&self) -> Option<Instant> {
        let reads = self.reads.get().wrapping_add(1);
        self.reads.set(reads);
        reads.is_multiple_of(SAMPLED).then(Instant::now)
    }

    /// Records the time of a read until its bytes were passed on.
    #[inline]
    pub(crate) fn decided(&self, read: Option<Instant>) {
        if let Some(read) = read {
            self.added.decision.observe(read.elapsed().as_secs_f64());
        }
    }

    /// Records how long a message waited for its preparation.
    pub(crate) fn prepared(&self, since: Instant) {
        let waited = since.elapsed().as_secs_f64();
        self.added.preparation.observe(waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_so_many_reads_is_timed() {
        let clock = Clock::new(AddedTime::default());
        let timed = (0..10 * SAMPLED).filter(|_| clock.read().is_some());
        assert_eq!(timed.count(), 10);
    }
}
