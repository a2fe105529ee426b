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
    /// By [`Basis`].
    pub(super) statements: [Count; 4],
    /// From clients, and from servers.
    pub(super) received: [Count; 2],
    /// Found by text, found by form, not found.
    pub(super) verdicts: [Count; 3],
    pub(super) verdicts_kept: Count,
    pub(super) verdict_bytes: Count,
    pub(super) pool: PoolTally,
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
            add_one(&self.tally.statements, basis as usize);
        }
    }

    pub(crate) fn cached(&self, stats: &CacheStats) {
        let [by_text, by_form, not_found] = &self.tally.verdicts;
        by_text.set(stats.hits - stats.hits_by_form);
        by_form.set(stats.hits_by_form);
        not_found.set(stats.misses);
        self.tally.verdicts_kept.set(stats.entries as u64);
        self.tally.verdict_bytes.set(stats.bytes as u64);
    }

    #[inline]
    pub(crate) fn received_from_client(&self, bytes: usize) {
        let [from_clients, _] = &self.tally.received;
        from_clients.add(bytes as u64);
    }

    #[inline]
    pub(crate) fn received_from_server(&self, bytes: usize) {
        let [_, from_servers] = &self.tally.received;
        from_servers.add(bytes as u64);
    }
}

#[inline]
pub(super) fn add_one(counts: &[Count], place: usize) {
    if let Some(count) = counts.get(place) {
        count.add(1);
    }
}

/// The counters of all workers.
pub(super) struct Total<'a>(pub(super) &'a [Arc<Tally>]);

impl Total<'_> {
    pub(super) fn sum(&self, of: impl Fn(&Tally) -> &Count) -> u64 {
        self.0.iter().map(|tally| of(tally).get()).sum()
    }

    pub(super) fn sum_of_all(&self, of: impl Fn(&Tally) -> &[Count]) -> u64 {
        let all = self.0.iter().flat_map(|tally| of(tally));
        all.map(Count::get).sum()
    }

    /// Sums of several counters, which have these names.
    pub(super) fn sums<const N: usize>(
        &self,
        names: &[impl Copy + Into<&'static str>],
        of: impl Fn(&Tally) -> &[Count; N],
    ) -> impl Iterator<Item = (&'static str, u64)> {
        let mut sums = [0; N];
        for tally in self.0 {
            for (sum, count) in sums.iter_mut().zip(of(tally)) {
                *sum += count.get();
            }
        }
        names.iter().map(|&name| name.into()).zip(sums)
    }
}

#[cfg(test)]
mod tests {
    use Basis::{Exempt, FailedTransaction, NotRequired, Token};

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
                        worker.forwarded(tag, Token);
                    }
                    for (place, basis) in [NotRequired, Token, Exempt, FailedTransaction]
                        .into_iter()
                        .enumerate()
                    {
                        (0..=place).for_each(|_| worker.forwarded(b'E', basis));
                    }
                });
            }
        });
        let total = Total(&tallies);
        let received = total.sums(&["client", "server"], |tally| &tally.received);
        assert!(received.eq([("client", 3000), ("server", 21_000)]));
        let counts = total.sums(&[""; 4], |tally| &tally.statements);
        assert!(counts.map(|(_, count)| count).eq([3, 6, 9, 12]));
    }
}
