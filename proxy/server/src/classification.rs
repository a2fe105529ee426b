//! Classifying texts that take too long for a thread on which sessions wait.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_policies::{Analysis, Opaque, TextEncoding, classify};

use crate::aside::Aside;
use crate::timers::Timers;

/// So many texts are classified at once, by the whole process: each may take a second and 130 MiB.
const AT_ONCE: usize = 1;

/// A text waits for its verdict at most this long. After it, it is not understood, and so a write.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Classifies texts on threads of its own. Clones share one limit.
#[derive(Debug, Clone)]
pub(crate) struct Classification {
    aside: Aside,
    timers: Timers,
}

impl Classification {
    /// With what measures its times.
    #[must_use]
    pub(crate) fn new(timers: Timers) -> Self {
        Self {
            aside: Aside::new(AT_ONCE),
            timers,
        }
    }

    /// What the text does. To be awaited on a tokio runtime.
    pub(crate) async fn of(self, text: Vec<u8>, encoding: TextEncoding) -> Arc<Analysis> {
        let classified = self.aside.run(move || classify(&text, encoding));
        let verdict = self.timers.timeout(WAIT_MAX, classified).await;
        let verdict = verdict.ok().flatten();
        Arc::new(verdict.unwrap_or_else(|| Analysis::opaque(Opaque::Parser)))
    }
}
