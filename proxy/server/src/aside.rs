//! Work that takes too long for a thread with sessions, on separate threads, with a limit.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// One kind of work. Clones share its limit.
#[derive(Debug, Clone)]
pub(crate) struct Aside {
    places: Arc<Semaphore>,
}

impl Aside {
    pub(crate) fn new(at_once: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(at_once)),
        }
    }

    /// Runs `work` when its turn comes; the caller bounds the wait. Work that has begun is not cancelled. `None`: it
    /// panicked. Needs a tokio runtime.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(place);
            done
        });
        done.await.ok()
    }
}
