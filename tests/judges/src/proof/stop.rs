//! The end of a run, for all threads that wait for something else.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

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
    pub fn stop(&self) {
        *self.stopped.lock().expect("stop") = State::Stopped;
        self.changed.notify_all();
    }

    /// True at the end of the run.
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

    pub fn is_stopped(&self) -> bool {
        *self.stopped.lock().expect("stop") == State::Stopped
    }
}
