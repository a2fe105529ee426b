//! Refusals before a login was authenticated: whoever reaches the proxy can cause as many as it likes, in any name.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Records of them that are made in [`WINDOW`].
pub(super) const FIRST: u32 = 10;

/// After this time the first ones are recorded again, and the others told of.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

/// Lets the first ones through and counts the others.
#[derive(Debug, Default)]
pub(super) struct Unproved {
    seen: Mutex<Option<(Instant, u32)>>,
    left_out: AtomicU64,
}

impl Unproved {
    /// Whether this one is to be recorded.
    pub(super) fn admits(&self) -> bool {
        let mut seen = self.seen.lock();
        let (since, count) = match *seen {
            Some((since, count)) if since.elapsed() < WINDOW => (since, count),
            _ => (Instant::now(), 0),
        };
        *seen = Some((since, count.saturating_add(1)));
        drop(seen);
        let admits = count < FIRST;
        if !admits {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        admits
    }

    /// How many were not recorded since this was asked last.
    pub(super) fn take_left_out(&self) -> u64 {
        self.left_out.swap(0, Ordering::Relaxed)
    }
}
