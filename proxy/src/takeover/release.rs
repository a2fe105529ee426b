//! Sessions that ended normally: their records are removed in the background, many at once.
//!
//! A session that declares again waits until its release is through, so the two cannot change places.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pgpalisade_authority::{Authority, AuthorityError, Backend};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::error::DeclareError;
use super::in_time;

/// Releases that may wait. Beyond that the reaper removes the records.
const LIMIT: usize = 65_536;
/// Releases in one step of the authority.
const BATCH: usize = 1_024;
/// Between attempts when the authority does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// The releases that are not yet through.
#[derive(Debug, Default)]
pub(super) struct Releases {
    waiting: Mutex<HashSet<Backend>>,
    /// Something is waiting.
    wake: Notify,
    /// Some are through.
    through: Notify,
}

impl Releases {
    pub(super) fn push(&self, backend: Backend) {
        let mut waiting = self.lock();
        if waiting.len() >= LIMIT {
            tracing::warn!(%backend, "too many releases wait; the reaper will remove this record");
            return;
        }
        waiting.insert(backend);
        drop(waiting);
        self.wake.notify_one();
    }

    /// Returns when no release of this session is under way.
    pub(super) async fn wait_for(
        &self,
        backend: Backend,
        deadline: Instant,
    ) -> Result<(), DeclareError> {
        loop {
            let through = self.through.notified();
            if !self.lock().contains(&backend) {
                return Ok(());
            }
            if timeout_at(deadline, through).await.is_err() {
                let why = "an earlier release of this session is not through".to_owned();
                return Err(DeclareError::Authority(AuthorityError::Unavailable(why)));
            }
        }
    }

    /// Removes the records, until `cancel`. A release that fails stays first in line: it may have been
    /// taken, and
    /// a later declaration must not be undone by it.
    pub(super) async fn run(
        self: Arc<Self>,
        authority: Arc<dyn Authority>,
        timeout: Duration,
        cancel: CancellationToken,
    ) {
        loop {
            let batch: Vec<Backend> = self.lock().iter().take(BATCH).copied().collect();
            if batch.is_empty() {
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = self.wake.notified() => continue,
                }
            }
            match in_time(authority.forget(&batch), Instant::now() + timeout).await {
                Ok(()) => {
                    let mut waiting = self.lock();
                    batch.iter().for_each(|backend| _ = waiting.remove(backend));
                    drop(waiting);
                    self.through.notify_waiters();
                }
                Err(error) => {
                    tracing::warn!(%error, "records of ended sessions wait to be removed");
                    tokio::select! {
                        () = cancel.cancelled() => return,
                        () = sleep(RETRY) => {}
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Backend>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
