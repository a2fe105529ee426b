//! Counts of the server connections that clients share.

use std::fmt;
use std::time::Duration;

use pgpalisade_policies::Leftover;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::tally::{Count, Total, WorkerTally};
use super::{counter, family, gauge};

#[derive(Debug, Default)]
pub(super) struct PoolTally {
    lent: Count,
    waits: Count,
    waited_us: Count,
    openings: [Count; 2],
    resets: [Count; 2],
    /// By [`Leftover::ALL`].
    pins: [Count; 7],
    pinned: Count,
    waiting: Count,
    /// By [`ServerState::ALL`].
    connections: [Count; 5],
}

/// State of a server connection that clients share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    Active,
    Idle,
    Resetting,
    Opening,
    Closing,
}

impl ServerState {
    pub const ALL: [Self; 5] = [
        Self::Active,
        Self::Idle,
        Self::Resetting,
        Self::Opening,
        Self::Closing,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Idle => "idle",
            Self::Resetting => "resetting",
            Self::Opening => "opening",
            Self::Closing => "closing",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    Done,
    Failed,
}

const OUTCOMES: [(&str, Outcome); 2] = [("done", Outcome::Done), ("failed", Outcome::Failed)];

/// What a worker's pool has at a moment.
#[derive(Debug, Default)]
pub(crate) struct PoolSizes {
    pub(crate) pinned: usize,
    pub(crate) waiting: usize,
    pub(crate) connections: [usize; 5],
}

impl WorkerTally {
    fn pool(&self) -> &PoolTally {
        &self.tally.pool
    }

    pub(crate) fn lent(&self) {
        self.pool().lent.add(1);
    }

    /// Counts a client that has waited for a server connection.
    pub(crate) fn waited(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.pool().waits.add(1);
        self.pool().waited_us.add(time);
    }

    pub(crate) fn opening(&self, outcome: Outcome) {
        count(&self.pool().openings, outcome as usize);
    }

    pub(crate) fn reset(&self, outcome: Outcome) {
        count(&self.pool().resets, outcome as usize);
    }

    pub(crate) fn pinned(&self, left: Leftover) {
        count(&self.pool().pins, left as usize);
    }

    pub(crate) fn sizes(&self, sizes: &PoolSizes) {
        let pool = self.pool();
        pool.pinned.set(sizes.pinned as u64);
        pool.waiting.set(sizes.waiting as u64);
        for (count, size) in pool.connections.iter().zip(sizes.connections) {
            count.set(size as u64);
        }
    }
}

fn count(counts: &[Count], place: usize) {
    if let Some(count) = counts.get(place) {
        count.add(1);
    }
}

impl Total<'_> {
    pub(super) fn lent(&self) -> u64 {
        self.sum(|tally| &tally.pool.lent)
    }

    pub(super) fn waited_us(&self) -> u64 {
        self.sum(|tally| &tally.pool.waited_us)
    }

    pub(super) fn encode_pool(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let sums = |counts: fn(&PoolTally) -> &[Count], place: usize| -> u64 {
            let tallies = self.0.iter();
            let counts = tallies.filter_map(|tally| counts(&tally.pool).get(place));
            counts.map(Count::get).sum()
        };
        let states = ServerState::ALL.map(|state| {
            let size = sums(|pool| &pool.connections, state as usize);
            (state.as_str(), ConstGauge::new(size as f64))
        });
        let help = "Server connections that clients share, by state.";
        family(encoder, "pool_connections", help, "state", states)?;
        let waiting = self.sum(|tally| &tally.pool.waiting) as f64;
        let help = "Clients that wait for a server connection.";
        gauge(encoder, "pool_waiting", help, waiting)?;
        let pinned = self.sum(|tally| &tally.pool.pinned) as f64;
        let help = "Server connections that clients keep beyond a transaction.";
        gauge(encoder, "pool_pinned", help, pinned)?;
        let help = "Server connections lent to clients.";
        single(encoder, "pool_lent", help, ConstCounter::new(self.lent()))?;
        let waits = ConstCounter::new(self.sum(|tally| &tally.pool.waits));
        let help = "Clients that have waited for a server connection.";
        single(encoder, "pool_waits", help, waits)?;
        let waited = ConstCounter::new(self.waited_us() as f64 / 1e6);
        let help = "Time that they have waited.";
        single(encoder, "pool_wait_seconds", help, waited)?;
        let of = |counts: fn(&PoolTally) -> &[Count]| {
            OUTCOMES.map(|(name, outcome)| counter((name, sums(counts, outcome as usize))))
        };
        let (openings, resets) = (of(|pool| &pool.openings), of(|pool| &pool.resets));
        let help = "Openings of shared server connections, by result.";
        family(encoder, "pool_openings", help, "result", openings)?;
        let help = "Resets of shared server connections, by result.";
        family(encoder, "pool_resets", help, "result", resets)?;
        let pins = Leftover::ALL.map(|left| {
            let pins = sums(|pool| &pool.pins, left as usize);
            counter((left.kind(), pins))
        });
        let help =
            "Times that a client began to keep its server connection, by what it has left there.";
        family(encoder, "pool_pins", help, "leftover", pins)
    }
}

fn single(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: impl EncodeMetric + TypedMetric,
) -> fmt::Result {
    let encoder = encoder.encode_descriptor(name, help, None, metric.metric_type())?;
    metric.encode(encoder)
}
