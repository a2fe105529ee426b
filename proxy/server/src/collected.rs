//! Incomplete texts: limits for their memory together, and for the time of each.
//!
//! A text is judged as a whole. Long texts need room from a budget; one without room counts as unreadable.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use pgpalisade_wire::header::Header;

use crate::timers::Timers;

/// Messages up to this size need no room from the budget.
const FREE: usize = 16 * 1024;

/// The bytes left, and the time limit of a message. Clones on one thread share them.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    left: Rc<Cell<usize>>,
    within: Duration,
}

impl Budget {
    /// Each message must arrive `within` this time.
    #[must_use]
    pub(crate) fn new(bytes: usize, within: Duration) -> Self {
        Self {
            left: Rc::new(Cell::new(bytes)),
            within,
        }
    }

    fn take(&self, bytes: usize) -> Option<Share> {
        self.left.set(self.left.get().checked_sub(bytes)?);
        Some(Share {
            of: self.clone(),
            bytes,
        })
    }
}

#[derive(Debug)]
struct Share {
    of: Budget,
    bytes: usize,
}

impl Share {
    /// Takes what is missing up to this size. Returns whether there was room.
    fn grow(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let left = self.of.left.get().checked_sub(more);
        left.map(|left| self.of.left.set(left)).is_some_and(|()| {
            self.bytes += more;
            true
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.left.set(self.of.left.get() + self.bytes);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Collecting(Option<(Share, Pin<Box<Sleep>>)>);

impl Collecting {
    /// Whether the rest of a message may be waited for. It needs room for the bytes that are here.
    pub(crate) fn may_wait(
        &mut self,
        message: Header,
        here: &[u8],
        budget: &Budget,
        timers: &Timers,
    ) -> bool {
        let here = here.len();
        if let Some((share, _)) = &mut self.0 {
            return share.grow(here);
        }
        if message.body_len <= FREE {
            return true;
        }
        let late = || Box::pin(timers.sleep(budget.within));
        self.0 = budget.take(here).map(|share| (share, late()));
        self.0.is_some()
    }

    #[inline]
    pub(crate) fn done(&mut self) {
        if self.0.is_some() {
            self.0 = None;
        }
    }

    /// Restarts the time limit after its client was held up.
    pub(crate) fn restart(&mut self) {
        if let Some((share, late)) = &mut self.0 {
            late.as_mut().reset(Instant::now() + share.of.within);
        }
    }

    /// Whether the message takes too long. Wakes the task when it does.
    #[inline]
    pub(crate) fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.0 {
            None => false,
            Some((_, late)) => matches!(late.as_mut().poll(cx), Poll::Ready(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[tokio::test]
    async fn room_is_given_back_and_time_is_limited() {
        let within = Duration::from_millis(200);
        let (timers, budget) = (Timers::of_this_runtime(), Budget::new(100 * 1024, within));
        let mut context = Context::from_waker(Waker::noop());
        let [mut one, mut two, mut small] = [(); 3].map(|()| Collecting::default());
        let bytes = vec![0; 60 * 1024];
        let wait = |one: &mut Collecting, body_len: usize, here: usize| {
            let message = Header {
                tag: b'Q',
                body_len,
            };
            one.may_wait(message, &bytes[..here], &budget, &timers)
        };
        const LONG: usize = 1024 * 1024;
        // Only what is here needs room.
        assert!(wait(&mut one, LONG, 5));
        assert!(wait(&mut two, LONG, 5));
        assert!(wait(&mut one, LONG, 60 * 1024));
        assert!(wait(&mut one, LONG, 60 * 1024));
        assert!(!wait(&mut two, LONG, 60 * 1024));
        assert!(wait(&mut small, FREE, 5));
        assert!(!one.is_late(&mut context));
        tokio::time::sleep(within).await;
        assert!(one.is_late(&mut context));
        assert!(!small.is_late(&mut context));
        one.restart();
        assert!(!one.is_late(&mut context));
        one.done();
        assert!(wait(&mut two, LONG, 60 * 1024));
        assert!(!wait(&mut one, LONG, 60 * 1024));
        drop(two);
        assert_eq!(budget.left.get(), 100 * 1024);
    }
}
