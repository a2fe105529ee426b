//! Classifying texts that take too long for a thread on which sessions wait.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_policies::{Lexing, Opaque, Verdict, classify};
use tokio::sync::Semaphore;

use crate::timers::Timers;

/// So many texts are classified at once, by the whole process: each may take a second and 130 MiB.
const AT_ONCE: usize = 1;

/// A text waits for its turn at most this long. After it, it is not understood, and so a write.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Classifies texts on threads of its own. Clones share one limit.
#[derive(Debug, Clone)]
pub(crate) struct Classification {
    places: Arc<Semaphore>,
    timers: Timers,
}

impl Classification {
    /// With what measures its times.
    #[must_use]
    pub(crate) fn new(timers: Timers) -> Self {
        Self {
            places: Arc::new(Semaphore::new(AT_ONCE)),
            timers,
        }
    }

    /// What the text does. To be awaited on a tokio runtime.
    pub(crate) async fn of(self, text: Vec<u8>, lexing: Lexing) -> Arc<Verdict> {
        let turn = self
            .timers
            .timeout(WAIT_MAX, self.places.acquire_owned())
            .await;
        let Ok(Ok(place)) = turn else {
            return Arc::new(Verdict::opaque(Opaque::Parser));
        };
        let classified = tokio::task::spawn_blocking(move || {
            let verdict = classify(&text, lexing);
            drop(place);
            verdict
        });
        let verdict = classified.await;
        Arc::new(verdict.unwrap_or_else(|_| Verdict::opaque(Opaque::Parser)))
    }
}
