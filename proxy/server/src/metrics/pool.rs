//! Counts of the server connections that clients share.

use std::fmt;
use std::time::Duration;

use pgpalisade_policies::Leftover;
pub use pgpalisade_pool::Activity as ServerState;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use strum::VariantArray;

use super::tally::{Count, Total, WorkerTally, add_one};
use super::{counter, family, gauge};

#[derive(Debug, Default)]
pub(super) struct PoolTally {
    pub(super) lent: Count,
    waits: Count,
    pub(super) waited_us: Count,
    openings: [Count; 2],
    resets: [Count; 2],
    pins: [Count; Leftover::ALL.len()],
    pinned: Count,
    waiting: Count,
    connections: [Count; ServerState::VARIANTS.len()],
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    Done,
    Failed,
}

/// By [`Outcome`].
const OUTCOMES: [&str; 2] = ["done", "failed"];

/// What a worker's pool has at a moment.
#[derive(Debug, Default)]
pub(crate) struct PoolSizes {
    pub(crate) pinned: usize,
    pub(crate) waiting: usize,
    pub(crate) connections: [usize; ServerState::VARIANTS.len()],
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
        add_one(&self.pool().openings, outcome as usize);
    }

    pub(crate) fn reset(&self, outcome: Outcome) {
        add_one(&self.pool().resets, outcome as usize);
    }

    pub(crate) fn pinned(&self, left: Leftover) {
        add_one(&self.pool().pins, left as usize);
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

impl Total<'_> {
    pub(super) fn encode_pool(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let states = self.sums(ServerState::VARIANTS, |tally| &tally.pool.connections);
        let states = states.map(|(state, size)| (state, ConstGauge::new(size as f64)));
        let help = "Server connections that clients share, by state.";
        family(encoder, "pool_connections", help, "state", states)?;
        let waiting = self.sum(|tally| &tally.pool.waiting) as f64;
        let help = "Clients that wait for a server connection.";
        gauge(encoder, "pool_waiting", help, waiting)?;
        let pinned = self.sum(|tally| &tally.pool.pinned) as f64;
        let help = "Server connections that clients keep beyond a transaction.";
        gauge(encoder, "pool_pinned", help, pinned)?;
        let lent = ConstCounter::new(self.sum(|tally| &tally.pool.lent));
        let help = "Server connections lent to clients.";
        single(encoder, "pool_lent", help, lent)?;
        let waits = ConstCounter::new(self.sum(|tally| &tally.pool.waits));
        let help = "Clients that have waited for a server connection.";
        single(encoder, "pool_waits", help, waits)?;
        let waited = self.sum(|tally| &tally.pool.waited_us) as f64 / 1e6;
        let help = "Time that they have waited.";
        single(
            encoder,
            "pool_wait_seconds",
            help,
            ConstCounter::new(waited),
        )?;
        let openings = self.sums(&OUTCOMES, |tally| &tally.pool.openings);
        let resets = self.sums(&OUTCOMES, |tally| &tally.pool.resets);
        let help = "Openings of shared server connections, by result.";
        family(
            encoder,
            "pool_openings",
            help,
            "result",
            openings.map(counter),
        )?;
        let help = "Resets of shared server connections, by result.";
        family(encoder, "pool_resets", help, "result", resets.map(counter))?;
        let pins = self.sums(Leftover::ALL, |tally| &tally.pool.pins);
        let help =
            "Times that a client began to keep its server connection, by what it has left there.";
        family(encoder, "pool_pins", help, "leftover", pins.map(counter))
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
