//! Timers for the workers, whose own runtimes have none.
//!
//! A runtime of tokio that has timers reads the clock and looks through them each time it waits. With one client,
//! that is 600 instructions of a transaction's 5,200 (docs/decisions/0009), and none is armed on the way of a
//! message. So those of the workers are the main runtime's.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, Timeout};

/// The timers of another runtime. They end with it.
#[derive(Debug, Clone)]
pub struct Timers(Handle);

impl Timers {
    /// Those of a runtime.
    pub const fn new(runtime: Handle) -> Self {
        Self(runtime)
    }

    /// Those of the runtime that this is called on.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn of_this_runtime() -> Self {
        Self(Handle::current())
    }

    /// As [`tokio::time::sleep`].
    pub(crate) fn sleep(&self, time: Duration) -> Sleep {
        let _entered = self.0.enter();
        tokio::time::sleep(time)
    }

    /// As [`tokio::spawn`], where there is I/O too.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.0.spawn(future)
    }

    /// As [`tokio::time::timeout`].
    pub(crate) fn timeout<F: Future>(&self, limit: Duration, future: F) -> Timeout<F> {
        let _entered = self.0.enter();
        tokio::time::timeout(limit, future)
    }
}
