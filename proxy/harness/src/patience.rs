//! Waiting with a limit.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::HarnessError;

const POLL: Duration = Duration::from_millis(5);

#[derive(Debug, Clone)]
pub struct Patience {
    limit: Duration,
    stop: CancellationToken,
}

impl Patience {
    pub fn at_most(limit: Duration) -> Self {
        Self::unless(limit, &CancellationToken::new())
    }

    pub fn unless(limit: Duration, stop: &CancellationToken) -> Self {
        let stop = stop.clone();
        Self { limit, stop }
    }

    /// Polls every few milliseconds until there is an answer; `None` after the limit.
    ///
    /// # Errors
    ///
    /// [`HarnessError::Interrupted`] once cancelled.
    pub fn until<T>(&self, mut ask: impl FnMut() -> Option<T>) -> Result<Option<T>, HarnessError> {
        let start = Instant::now();
        loop {
            if self.stop.is_cancelled() {
                return Err(HarnessError::Interrupted);
            }
            if let Some(answer) = ask() {
                return Ok(Some(answer));
            }
            if start.elapsed() >= self.limit {
                return Ok(None);
            }
            std::thread::sleep(POLL);
        }
    }
}
