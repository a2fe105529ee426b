//! Classification of texts that take too long for a thread with sessions.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_policies::{Analysis, TextEncoding, classify};

use crate::aside::Aside;
use crate::timers::Timers;

/// Limit of concurrent classifications in the process: each may take a second and 130 MiB.
const AT_ONCE: usize = 1;

/// Limit of a text's wait for its verdict. After that it counts as a write.
const WAIT_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(crate) struct Classification {
    aside: Aside,
    timers: Timers,
}

impl Classification {
    #[must_use]
    pub(crate) fn new(timers: Timers) -> Self {
        Self {
            aside: Aside::new(AT_ONCE),
            timers,
        }
    }

    /// The text's verdict. Needs a tokio runtime.
    pub(crate) async fn of(self, text: Vec<u8>, encoding: TextEncoding) -> Arc<Analysis> {
        let text: Arc<[u8]> = text.into();
        let read = Arc::clone(&text);
        let classified = self.aside.run(move || classify(&read, encoding));
        let verdict = self.timers.timeout(WAIT_MAX, classified).await;
        let verdict = verdict.ok().flatten();
        Arc::new(verdict.unwrap_or_else(|| Analysis::given_up(&text)))
    }
}
