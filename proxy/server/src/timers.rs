//! Timers for the workers, whose runtimes have none.
//!
//! A tokio runtime with timers checks them each time it waits: with one client, 600 instructions of a transaction's
//! 5,200 (docs/decisions/0009). No message needs a timer.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, Timeout};

/// Timers of another runtime, which end with it.
#[derive(Debug, Clone)]
pub struct Timers(Handle);

impl Timers {
    pub const fn new(runtime: Handle) -> Self {
        Self(runtime)
    }

    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn of_this_runtime() -> Self {
        Self(Handle::current())
    }

    pub(crate) fn sleep(&self, time: Duration) -> Sleep {
        let _entered = self.0.enter();
        tokio::time::sleep(time)
    }

    /// Spawns on the main runtime, which has I/O and timers.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.0.spawn(future)
    }

    pub(crate) fn timeout<F: Future>(&self, limit: Duration, future: F) -> Timeout<F> {
        let _entered = self.0.enter();
        tokio::time::timeout(limit, future)
    }
}
