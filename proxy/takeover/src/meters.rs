//! Measurements of takeovers and of the authority.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Seconds of a takeover, from its first look until the authority has recorded that no session is left.
const TAKEOVER_SECONDS: [f64; 13] = [
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
];

/// Seconds until the authority answers.
const ANSWER_SECONDS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];

/// Seconds from when a renewal is due until it is done: at 5 the session is ended.
const RENEWAL_SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 4.0, 5.0];

/// Seconds without a leader.
const VACANT_SECONDS: [f64; 11] = [
    0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 600.0, 3600.0,
];

/// Operations of the authority.
const OPERATIONS: [&str; 11] = [
    "enrol", "declare", "sessions", "marks", "mark", "drained", "forget", "repair", "cluster",
    "recover", "lease",
];

/// One label: the operation.
type Operation = [(&'static str, &'static str); 1];

/// Counts since the start of the proxy. Clones count together.
#[derive(Debug, Clone)]
pub struct Meters {
    pub(super) marks_raised: Counter,
    pub(super) completed: Histogram,
    pub(super) incomplete: Counter,
    pub(super) sessions_ended: Counter,
    pub(super) control_lost: Counter,
    /// Leases held by sessions of this proxy.
    pub(super) leases: Gauge,
    pub(super) lease_renewed: Histogram,
    pub(super) lease_vacant: Histogram,
    answers: Family<Operation, Histogram>,
    errors: Family<Operation, Counter>,
}

impl Default for Meters {
    fn default() -> Self {
        // Begins at zero, so that the first error is seen as a rise.
        let errors = Family::<Operation, Counter>::default();
        for operation in OPERATIONS {
            drop(errors.get_or_create(&[("operation", operation)]));
        }
        Self {
            marks_raised: Counter::default(),
            completed: Histogram::new(TAKEOVER_SECONDS),
            incomplete: Counter::default(),
            sessions_ended: Counter::default(),
            control_lost: Counter::default(),
            leases: Gauge::default(),
            lease_renewed: Histogram::new(RENEWAL_SECONDS),
            lease_vacant: Histogram::new(VACANT_SECONDS),
            answers: Family::new_with_constructor(|| Histogram::new(ANSWER_SECONDS)),
            errors,
        }
    }
}

impl Meters {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Marks raised through this proxy";
        registry.register("marks_raised", help, self.marks_raised.clone());
        let help = "Takeovers that were not completed in time (PF006)";
        registry.register("takeovers_incomplete", help, self.incomplete.clone());
        let (help, ended) = (
            "Sessions that completed takeovers have waited for, once for each takeover",
            &self.sessions_ended,
        );
        registry.register("takeover_sessions_ended", help, ended.clone());
        let help = "Losses of the control connection";
        registry.register("control_connection_lost", help, self.control_lost.clone());
        let help = "Leases held by sessions of this proxy";
        registry.register("leases_held", help, self.leases.clone());
        let help = "Requests that the token authority did not answer, or answered with an error";
        registry.register("authority_errors", help, self.errors.clone());
        let help = "Time the token authority took to answer";
        let answers = self.answers.clone();
        registry.register_with_unit("authority_answer", help, Unit::Seconds, answers);
        let mut register = |name, help, histogram: &Histogram| {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        };
        let help = "Time of takeovers that had sessions to end, until the authority knew that none remained";
        register("takeover_duration", help, &self.completed);
        let help =
            "Time from when a lease was to be renewed until it was; after 5 s its session is ended";
        register("lease_renewal", help, &self.lease_renewed);
        let help = "Time from the end of a lease, as far as this proxy knows it, to the next token under it";
        register("lease_vacant", help, &self.lease_vacant);
    }

    /// Counts an answer that took this long.
    pub(super) fn answered(&self, operation: &'static str, took: Duration) {
        let histogram = self.answers.get_or_create(&[("operation", operation)]);
        histogram.observe(took.as_secs_f64());
    }

    /// Counts a request that failed or was not answered.
    pub(super) fn unanswered(&self, operation: &'static str) {
        self.errors.get_or_create(&[("operation", operation)]).inc();
    }
}

/// Milliseconds for the log, rounded to hundredths.
pub(super) fn millis(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e5).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_rounded() {
        for (nanos, expect) in [(4_747_822, "4.75"), (999, "0"), (60_000_000_001, "60000")] {
            assert_eq!(millis(Duration::from_nanos(nanos)).to_string(), expect);
        }
    }
}
