//! Counters of one worker, which change with every message: without locks, on a separate cache line.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pgpalisade_fence::Basis;
use pgpalisade_policies::CacheStats;

use super::pool::PoolTally;

/// Types of messages that execute something: <https://www.postgresql.org/docs/current/protocol-message-formats.html>.
const QUERY: u8 = b'Q';
const EXECUTE: u8 = b'E';
const FUNCTION_CALL: u8 = b'F';

/// Bases of permits, in the order of the counters.
const BASES: [(Basis, &str); 4] = [
    (Basis::NotRequired, "not_required"),
    (Basis::Token, "token"),
    (Basis::Exempt, "exempt"),
    (Basis::FailedTransaction, "failed_transaction"),
];

/// A number that one thread adds to, and others read.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(super) fn add(&self, more: u64) {
        // Nothing is lost between load and store, with only one writer.
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(more);
        self.0.store(sum, Ordering::Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one worker, alone on their cache line and on the adjacent one.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Tally {
    not_required: Count,
    token: Count,
    exempt: Count,
    failed_transaction: Count,
    from_client: Count,
    from_server: Count,
    verdicts: Verdicts,
    pub(super) pool: PoolTally,
}

#[derive(Debug, Default)]
struct Verdicts {
    by_text: Count,
    by_form: Count,
    not_found: Count,
    entries: Count,
    bytes: Count,
}

impl Tally {
    const fn statements(&self, basis: Basis) -> &Count {
        match basis {
            Basis::NotRequired => &self.not_required,
            Basis::Token => &self.token,
            Basis::Exempt => &self.exempt,
            Basis::FailedTransaction => &self.failed_transaction,
        }
    }
}

#[derive(Debug)]
pub(crate) struct WorkerTally {
    pub(super) tally: Arc<Tally>,
    _stays: PhantomData<*const ()>,
}

impl WorkerTally {
    pub(super) const fn new(tally: Arc<Tally>) -> Self {
        Self {
            tally,
            _stays: PhantomData,
        }
    }

    /// Counts a message to the server, if it executes something.
    #[inline]
    pub(crate) fn forwarded(&self, tag: u8, basis: Basis) {
        if matches!(tag, QUERY | EXECUTE | FUNCTION_CALL) {
            self.tally.statements(basis).add(1);
        }
    }

    pub(crate) fn cached(&self, stats: &CacheStats) {
        let verdicts = &self.tally.verdicts;
        verdicts.by_text.set(stats.hits - stats.hits_by_form);
        verdicts.by_form.set(stats.hits_by_form);
        verdicts.not_found.set(stats.misses);
        verdicts.entries.set(stats.entries as u64);
        verdicts.bytes.set(stats.bytes as u64);
    }

    #[inline]
    pub(crate) fn received_from_client(&self, bytes: usize) {
        self.tally.from_client.add(bytes as u64);
    }

    #[inline]
    pub(crate) fn received_from_server(&self, bytes: usize) {
        self.tally.from_server.add(bytes as u64);
    }
}

pub(super) struct Total<'a>(pub(super) &'a [Arc<Tally>]);

impl<'a> Total<'a> {
    pub(super) const fn of(tallies: &'a [Arc<Tally>]) -> Self {
        Self(tallies)
    }

    pub(super) fn statements(&self) -> [(&'static str, u64); BASES.len()] {
        BASES.map(|(basis, name)| (name, self.sum(|tally| tally.statements(basis))))
    }

    pub(super) fn received(&self) -> [(&'static str, u64); 2] {
        [
            ("client", self.sum(|tally| &tally.from_client)),
            ("server", self.sum(|tally| &tally.from_server)),
        ]
    }

    pub(super) fn verdicts(&self) -> [(&'static str, u64); 3] {
        [
            ("text", self.sum(|tally| &tally.verdicts.by_text)),
            ("form", self.sum(|tally| &tally.verdicts.by_form)),
            ("no", self.sum(|tally| &tally.verdicts.not_found)),
        ]
    }

    pub(super) fn verdicts_kept(&self) -> u64 {
        self.sum(|tally| &tally.verdicts.entries)
    }

    pub(super) fn verdict_bytes(&self) -> u64 {
        self.sum(|tally| &tally.verdicts.bytes)
    }

    pub(super) fn sum(&self, of: impl Fn(&Tally) -> &Count) -> u64 {
        self.0.iter().map(|tally| of(tally).get()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_count_apart_and_are_summed() {
        let tallies: Vec<Arc<Tally>> = (0..3).map(|_| Arc::default()).collect();
        let threads: Vec<_> = tallies.iter().cloned().enumerate().collect();
        std::thread::scope(|scope| {
            for (number, tally) in threads {
                scope.spawn(move || {
                    let worker = WorkerTally::new(tally);
                    for _ in 0..1000 {
                        worker.received_from_client(number);
                        worker.received_from_server(7);
                    }
                    for tag in *b"PBDSHCdcfpX" {
                        worker.forwarded(tag, Basis::Token);
                    }
                    for (place, (basis, _)) in BASES.iter().enumerate() {
                        (0..=place).for_each(|_| worker.forwarded(b'E', *basis));
                    }
                });
            }
        });
        let total = Total::of(&tallies);
        assert_eq!(total.received(), [("client", 3000), ("server", 21_000)]);
        let counts = total.statements().map(|(_, count)| count);
        assert_eq!(counts, [3, 6, 9, 12]);
    }
}
