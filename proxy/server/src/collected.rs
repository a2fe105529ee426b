//! Texts that have not arrived whole: how much memory they take together, and how long one may take.
//!
//! A text is judged when all of it is there, so what has come of it is kept. Many clients that each stop in the middle
//! would hold as much as they like for as long as they like. So long ones need room from a budget before anything of
//! them is kept, and time is limited. A text that gets no room is not waited for: it counts as one that cannot be read,
//! which holds up nobody who may send whatever it likes.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::timers::Timers;

/// A message up to this size needs no room: a connection may always hold so much.
const FREE: usize = 16 * 1024;

/// Bytes that are left, and how long one message may have some of them. Clones share them, on one thread.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    left: Rc<Cell<usize>>,
    within: Duration,
}

impl Budget {
    /// One of so many bytes. A message has to arrive `within` this time.
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

/// Room for one message, given back when it is dropped.
#[derive(Debug)]
struct Share {
    of: Budget,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.left.set(self.of.left.get() + self.bytes);
    }
}

/// The message of one connection that is being collected.
#[derive(Debug, Default)]
pub(crate) struct Collecting(Option<(Share, Pin<Box<Sleep>>)>);

impl Collecting {
    /// Whether the rest of a message of so many bytes may be waited for.
    pub(crate) fn may_wait(&mut self, bytes: usize, budget: &Budget, timers: &Timers) -> bool {
        if bytes <= FREE || self.0.is_some() {
            return true;
        }
        let late = || Box::pin(timers.sleep(budget.within));
        self.0 = budget.take(bytes).map(|share| (share, late()));
        self.0.is_some()
    }

    /// The message has been decided.
    #[inline]
    pub(crate) fn done(&mut self) {
        if self.0.is_some() {
            self.0 = None;
        }
    }

    /// Its client was not read: the time begins anew.
    pub(crate) fn restart(&mut self) {
        if let Some((share, late)) = &mut self.0 {
            late.as_mut().reset(Instant::now() + share.of.within);
        }
    }

    /// Whether the message takes too long. To be asked while its client is waited for; wakes the task when it does.
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
        assert!(one.may_wait(60 * 1024, &budget, &timers));
        assert!(one.may_wait(60 * 1024, &budget, &timers));
        assert!(!two.may_wait(60 * 1024, &budget, &timers));
        assert!(small.may_wait(FREE, &budget, &timers));
        assert!(!one.is_late(&mut context));
        tokio::time::sleep(within).await;
        assert!(one.is_late(&mut context));
        assert!(!small.is_late(&mut context));
        one.restart();
        assert!(!one.is_late(&mut context));
        one.done();
        assert!(two.may_wait(60 * 1024, &budget, &timers));
        assert!(!one.may_wait(60 * 1024, &budget, &timers));
        drop(two);
        assert_eq!(budget.left.get(), 100 * 1024);
    }
}
