//! The last records, in memory, for observers of a running proxy.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::record::RejectionRecord;

/// Limit of records. With every name at its limit they take about 3 MiB.
pub(super) const KEPT: usize = 1000;

/// The last [`KEPT`] records, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<VecDeque<Arc<RejectionRecord>>>);

impl Recent {
    pub(super) fn push(&self, record: Arc<RejectionRecord>) {
        let mut records = self.0.lock();
        let oldest = (records.len() >= KEPT).then(|| records.pop_front());
        records.push_back(record);
        // Frees the oldest record after the lock.
        drop(records);
        drop(oldest);
    }

    pub(super) fn read(&self) -> Vec<Arc<RejectionRecord>> {
        self.0.lock().iter().map(Arc::clone).collect()
    }
}
