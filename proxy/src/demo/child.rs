//! A child process that ends with its guard.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const POLL: Duration = Duration::from_millis(10);

/// Ends the child when dropped: by each signal in turn, each with its time, at last by SIGKILL. By its pid, and
/// only while it has not been waited for, so that the pid is its own.
#[derive(Debug)]
pub struct ChildGuard {
    child: Child,
    farewell: &'static [(Signal, Duration)],
}

impl ChildGuard {
    /// Guards a child.
    pub fn new(child: Child, farewell: &'static [(Signal, Duration)]) -> Self {
        Self { child, farewell }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its status, once it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for the end for a limited time.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if start.elapsed() >= limit {
                return None;
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        for (signal, patience) in self.farewell {
            if self.ended().is_some() {
                return;
            }
            // It may have ended meanwhile; it is not reaped before `ended`, so no other process can be hit.
            let _ = kill_process(Pid::from_child(&self.child), *signal);
            if self.wait(*patience).is_some() {
                return;
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
