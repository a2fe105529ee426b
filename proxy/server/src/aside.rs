//! Work that takes too long for a thread on which sessions wait: on threads of its own, few at once.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// A kind of such work. Clones share its places.
#[derive(Debug, Clone)]
pub(crate) struct Aside {
    places: Arc<Semaphore>,
}

impl Aside {
    /// For so much of it at once, by the whole process.
    pub(crate) fn new(at_once: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(at_once)),
        }
    }

    /// Does it when its turn comes, which the caller bounds; what has begun goes on to its end. `None`: it has failed.
    /// To be awaited on a tokio runtime.
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
