//! Limit on the rise of a mark in a short time: `max_step` bounds one declaration, and without this many small ones
//! could go any distance.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_authority::{Incarnation, Mark, Scope, Token};
use tokio::time::Instant;

/// Time in which the declarations of a scope through one proxy together may raise its mark by `max_step`. Each proxy
/// counts separately, because a transaction of etcd cannot compare times.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// Number of windows at which expired ones are removed.
const WINDOWS: usize = 1024;

/// Windows of the scopes whose marks have risen lately, as this proxy knows them.
#[derive(Debug, Default)]
pub(super) struct Pace {
    windows: Mutex<HashMap<Scope, Window>>,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    began: Instant,
    /// The mark at its start.
    from: u64,
    incarnation: Incarnation,
}

impl Window {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.began) >= WINDOW
    }
}

impl Pace {
    /// Whether a declaration keeps the mark within `max_step` of its value at the start of the window. The first
    /// raise begins a window, and so does a repair. `mark` is the known mark; an outdated one makes the answer
    /// stricter.
    pub(super) fn allows(
        &self,
        now: Instant,
        scope: &Scope,
        token: Token,
        mark: &Mark,
        max_step: u64,
    ) -> bool {
        if token <= mark.token {
            return true;
        }
        let fresh = Window {
            began: now,
            from: mark.token.get(),
            incarnation: mark.incarnation,
        };
        let mut windows = self.windows.lock();
        if windows.len() >= WINDOWS {
            windows.retain(|_, window| !window.is_over(now));
        }
        let window = windows.entry(scope.clone()).or_insert(fresh);
        if window.is_over(now) || window.incarnation != mark.incarnation {
            *window = fresh;
        }
        token.get() <= window.from.saturating_add(max_step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(token: u64) -> Mark {
        Mark::new(Token::new(token).unwrap(), 1, "a test".to_owned())
    }

    #[test]
    fn small_steps_go_no_further_than_one_large_one() {
        let pace = Pace::default();
        let scope = Scope::new("jobs").unwrap();
        let began = Instant::now();
        let allows = |token: u64, known: u64, now| {
            pace.allows(now, &scope, Token::new(token).unwrap(), &mark(known), 10)
        };
        assert!(allows(15, 10, began));
        assert!(allows(20, 15, began));
        assert!(
            !allows(21, 20, began),
            "10 above where the window began is 20"
        );
        assert!(allows(20, 20, began), "equal raises nothing");
        let later = began + WINDOW;
        assert!(allows(30, 20, later));
        assert!(!allows(31, 30, later));
        let mut repaired = mark(3);
        repaired.incarnation = Incarnation::new(1);
        assert!(pace.allows(later, &scope, Token::new(13).unwrap(), &repaired, 10));
    }
}
