//! Sessions that ended normally: their records are removed in the background, many at once.
//!
//! Only ended sessions are released, so a removal that reaches the authority late or twice is still correct.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_authority::{Authority, Backend};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::in_time;

/// Maximum number of waiting releases. The reaper removes the records beyond that.
const LIMIT: usize = 65_536;
/// Releases in one step of the authority.
const BATCH: usize = 1_024;
/// Pause while the authority does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Releases that are not yet done.
#[derive(Debug, Default)]
pub(super) struct Releases {
    waiting: Mutex<HashSet<Backend>>,
    /// Signals that something is waiting.
    wake: Notify,
}

impl Releases {
    pub(super) fn push(&self, backend: Backend) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= LIMIT {
            tracing::warn!(%backend, "too many releases wait; the reaper will remove this record");
            return;
        }
        waiting.insert(backend);
        drop(waiting);
        self.wake.notify_one();
    }

    /// Removes the records, and repeats releases that fail.
    pub(super) async fn run(self: Arc<Self>, authority: Arc<dyn Authority>, timeout: Duration) {
        loop {
            let batch: Vec<Backend> = self.waiting.lock().iter().take(BATCH).copied().collect();
            if batch.is_empty() {
                self.wake.notified().await;
                continue;
            }
            match in_time(authority.forget(&batch), Instant::now() + timeout).await {
                Ok(()) => {
                    let mut waiting = self.waiting.lock();
                    batch.iter().for_each(|backend| _ = waiting.remove(backend));
                }
                Err(error) => {
                    // The loss of the authority is logged elsewhere.
                    tracing::debug!(%error, "cleanup of ended sessions deferred, will retry");
                    sleep(RETRY).await;
                }
            }
        }
    }
}
