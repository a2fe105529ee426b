//! Counters, and their export to Prometheus.
//!
//! Each worker counts messages separately (`tally`), and a scrape sums them. Connections and refusals have one shared
//! count.

mod added_time;
mod marks;
mod pool;
mod rejections;
mod tally;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::pause::{self, Pause};
use added_time::AddedTime;
pub(crate) use added_time::Clock;
use marks::MarkCollector;
use pgpalisade_fence::mark_cache::MarkCache;
use pgpalisade_fence::rejection::{Enforcement, Rejection};
use pgpalisade_takeover::Takeover;
use rejections::Rejections;
use tally::{Tally, Total};

pub use pool::ServerState;
pub(crate) use pool::{Outcome, PoolSizes};
pub(crate) use tally::WorkerTally;

/// Limit of scopes with separate series.
const SCOPES_MAX: usize = 1000;

/// Names of the bases of permits, in the order of `pgpalisade_fence::Basis`.
const BASES: [&str; 4] = ["not_required", "token", "exempt", "failed_transaction"];

/// Where bytes come from.
const SIDES: [&str; 2] = ["client", "server"];

type Label = [(&'static str, &'static str); 1];

#[derive(Debug, Clone)]
pub struct Metrics {
    marks: Arc<MarkCache>,
    tallies: Arc<Mutex<Vec<Arc<Tally>>>>,
    connections: Counter,
    open: Gauge,
    refused: Family<Label, Counter>,
    sessions: Counter,
    ended: Family<Label, Counter>,
    rejections: Arc<Rejections>,
    added: AddedTime,
}

/// Sums since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    pub sessions: u64,
    /// Server connections lent from a pool.
    pub lent: u64,
    pub statements: u64,
    pub received: u64,
    /// Microseconds that clients have waited for a server connection.
    pub waited_us: u64,
}

#[derive(Debug)]
pub(crate) struct OpenConnection(Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(crate) fn new(marks: Arc<MarkCache>) -> Self {
        Self {
            rejections: Arc::new(Rejections::new(Arc::clone(&marks))),
            marks,
            tallies: Arc::default(),
            connections: Counter::default(),
            open: Gauge::default(),
            refused: Family::default(),
            sessions: Counter::default(),
            ended: Family::default(),
            added: AddedTime::default(),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock::new(self.added.clone())
    }

    /// The only tally for the worker on this thread.
    pub(crate) fn worker(&self) -> WorkerTally {
        let tally = Arc::<Tally>::default();
        self.tallies.lock().push(Arc::clone(&tally));
        WorkerTally::new(tally)
    }

    pub(crate) fn connected(&self) -> OpenConnection {
        self.connections.inc();
        self.open.inc();
        OpenConnection(self.open.clone())
    }

    pub(crate) fn refused_login(&self, sqlstate: &'static str) {
        self.refused.get_or_create(&[("sqlstate", sqlstate)]).inc();
    }

    pub(crate) fn session_begun(&self) {
        self.sessions.inc();
    }

    pub(crate) fn session_ended(&self, reason: &'static str) {
        self.ended.get_or_create(&[("reason", reason)]).inc();
    }

    pub(crate) fn rejected(&self, rejection: &Rejection, enforcement: Enforcement) {
        let scope = rejection.scope.as_ref();
        self.rejections.count(scope, rejection.kind, enforcement);
    }

    /// Counts a refusal of a client that is not authenticated, without its scope.
    pub(crate) fn rejected_unproved(&self, rejection: &Rejection, enforcement: Enforcement) {
        self.rejections.count(None, rejection.kind, enforcement);
    }

    pub fn totals(&self) -> Totals {
        let tallies = self.tallies.lock();
        let total = Total(&tallies);
        Totals {
            sessions: self.sessions.get(),
            lent: total.sum(|tally| &tally.pool.lent),
            waited_us: total.sum(|tally| &tally.pool.waited_us),
            statements: total.sum_of_all(|tally| &tally.statements),
            received: total.sum_of_all(|tally| &tally.received),
        }
    }

    pub fn register(&self, takeover: &Takeover, pause: &Pause, registry: &mut Registry) {
        let ours = registry.sub_registry_with_prefix("pgpalisade");
        let help = "Client connections accepted";
        ours.register("connections", help, self.connections.clone());
        let help = "Open client connections";
        ours.register("connections_open", help, self.open.clone());
        let help = "Clients that the proxy itself refused, by SQLSTATE";
        ours.register("logins_refused", help, self.refused.clone());
        ours.register("sessions", "Sessions begun", self.sessions.clone());
        let help = "Sessions ended, by reason";
        ours.register("sessions_ended", help, self.ended.clone());
        ours.register_collector(Box::new(Traffic(Arc::clone(&self.tallies))));
        ours.register_collector(Box::new(Arc::clone(&self.rejections)));
        ours.register_collector(Box::new(MarkCollector(Arc::clone(&self.marks))));
        ours.register_collector(Box::new(Standing(takeover.clone(), pause.clone())));
        self.added.register(ours);
        takeover.meters().register(ours);
    }
}

#[derive(Debug)]
struct Traffic(Arc<Mutex<Vec<Arc<Tally>>>>);

impl Collector for Traffic {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let tallies = self.0.lock();
        let total = Total(&tallies);
        let encoder = &mut encoder;
        let help = "Statements sent to PostgreSQL, by the basis of their permit.";
        let counts = total.sums(&BASES, |tally| &tally.statements);
        family(encoder, "statements", help, "basis", counts.map(counter))?;
        let help = "Bytes received, without TLS.";
        let counts = total.sums(&SIDES, |tally| &tally.received);
        family(encoder, "received_bytes", help, "from", counts.map(counter))?;
        let help = "Lookups of query texts among the cached verdicts, by result.";
        let counts = total.sums(&["text", "form", "no"], |tally| &tally.verdicts);
        family(encoder, "verdicts", help, "known", counts.map(counter))?;
        let kept = total.sum(|tally| &tally.verdicts_kept) as f64;
        gauge(encoder, "verdicts_kept", "Cached verdicts.", kept)?;
        let bytes = total.sum(|tally| &tally.verdict_bytes) as f64;
        let help = "Memory of the cached verdicts.";
        gauge(encoder, "verdicts_kept_bytes", help, bytes)?;
        total.encode_pool(encoder)
    }
}

fn counter((name, count): (&str, u64)) -> (&str, ConstCounter<u64>) {
    (name, ConstCounter::new(count))
}

#[derive(Debug)]
struct Standing(Takeover, Pause);

impl Collector for Standing {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Whether the control connection leads to a primary.";
        let is_up = f64::from(u8::from(self.0.primary().is_some()));
        gauge(&mut encoder, "control_connection_up", help, is_up)?;
        let help = "Whether the console holds all sessions (PAUSE).";
        let is_paused = f64::from(u8::from(self.1.traffic() == pause::Traffic::Held));
        gauge(&mut encoder, "paused", help, is_paused)
    }
}

/// Encodes metrics of one name that differ in one label.
pub fn family<'a, M: EncodeMetric + TypedMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    metrics: impl IntoIterator<Item = (&'a str, M)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, M::TYPE)?;
    for (value, metric) in metrics {
        metric.encode(family.encode_family(&[(label, value)])?)?;
    }
    Ok(())
}

pub fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: f64,
) -> fmt::Result {
    let gauge = ConstGauge::new(value);
    let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
    gauge.encode(metric)
}
