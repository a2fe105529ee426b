//! The end of a run, for all threads that wait for something else.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// A flag that is set once.
#[derive(Debug, Default)]
pub struct Stop {
    stopped: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Running,
    Stopped,
}

impl Stop {
    /// Wakes all sleeping threads.
    pub fn stop(&self) {
        *self.stopped.lock().expect("stop") = State::Stopped;
        self.changed.notify_all();
    }

    /// Sleeps for this long, or until the end. True at the end.
    pub fn sleep(&self, duration: Duration) -> bool {
        let until = Instant::now() + duration;
        let mut state = self.stopped.lock().expect("stop");
        while *state == State::Running {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).expect("stop").0;
        }
        true
    }

    /// Whether the run has ended.
    pub fn is_stopped(&self) -> bool {
        *self.stopped.lock().expect("stop") == State::Stopped
    }
}
