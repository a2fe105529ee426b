//! How much of everything is measured.

use std::time::Duration;

/// The sizes of all measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Effort {
    /// Rounds of each target; the median counts.
    pub(crate) rounds: u32,
    /// Length of one closed loop.
    pub(crate) time: Duration,
    /// Size of one COPY.
    pub(crate) megabytes: u32,
    /// Statements of one pipeline.
    pub(crate) pipeline: u32,
    /// Idle sessions, ascending.
    pub(crate) sessions: Vec<u32>,
    /// Scopes that the store knows, or that a policy file lists, ascending. A policy file may have 100,000; a store
    /// has no such limit, but no figure is promised for more.
    pub(crate) scopes: Vec<u32>,
    /// Refused statements of each kind.
    pub(crate) refusals: u32,
    /// Time for PostgreSQL to have counted what sessions have done so far.
    pub(crate) settle: Duration,
    /// Transactions of which the WAL is compared.
    pub(crate) transactions: u32,
}

/// Turns of a round where small differences count.
const TURNS: u32 = 3;

impl Effort {
    /// How many closed loops there are where small differences count, and how long each is. Together they take as long
    /// as elsewhere, in shorter turns: what else the machine does meets all points of a line.
    pub(crate) fn fine(&self) -> (u32, Duration) {
        (self.rounds * TURNS, self.time / TURNS)
    }

    /// For figures: about ten minutes.
    pub(crate) fn full() -> Self {
        Self {
            rounds: 3,
            time: Duration::from_secs(1),
            megabytes: 1024,
            pipeline: 10_000,
            sessions: vec![1_000, 5_000],
            scopes: vec![1, 10, 100, 1_000, 10_000, 100_000],
            refusals: 50_000,
            // It writes a session's statistics up to ten seconds after its last statement (PGSTAT_IDLE_INTERVAL).
            settle: Duration::from_secs(11),
            transactions: 2_000,
        }
    }

    /// To see that everything runs: a few seconds.
    pub(crate) fn quick() -> Self {
        Self {
            rounds: 1,
            time: Duration::from_millis(100),
            megabytes: 4,
            pipeline: 200,
            sessions: vec![4, 12],
            scopes: vec![1, 20],
            refusals: 200,
            // A process that has answered must still come to rest, which on one processor it does when others wait.
            settle: Duration::from_millis(200),
            transactions: 50,
        }
    }
}
