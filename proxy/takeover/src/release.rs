//! Sessions that ended normally: their records are removed in the background, many at once.
//!
//! Only ended sessions are released, so a removal that reaches the authority late or twice is still correct.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{Authority, Backend};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::time::{Instant, sleep};

use super::in_time;

/// Maximum number of waiting releases. The reaper removes the records beyond that.
pub(super) const LIMIT: usize = 65_536;
/// Releases in one step of the authority.
const BATCH: usize = 1_024;
/// Pause while the authority does not answer.
const RETRY: Duration = Duration::from_millis(500);

pub(super) fn push(waiting: &Sender<Backend>, backend: Backend) {
    if let Err(TrySendError::Full(backend)) = waiting.try_send(backend) {
        tracing::warn!(%backend, "too many releases wait; the reaper will remove this record");
    }
}

/// Removes the records, and repeats removals that fail.
pub(super) async fn run(
    mut waiting: Receiver<Backend>,
    authority: Arc<dyn Authority>,
    timeout: Duration,
) {
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, BATCH).await > 0 {
        while let Err(error) = in_time(authority.forget(&batch), Instant::now() + timeout).await {
            // The loss of the authority is logged elsewhere.
            tracing::debug!(%error, "cleanup of ended sessions deferred, will retry");
            sleep(RETRY).await;
        }
        batch.clear();
    }
}
