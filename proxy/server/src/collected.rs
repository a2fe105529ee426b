//! Incomplete texts: limits for their memory together, and for the time of each.
//!
//! A text is judged as a whole. Long texts need room from a budget; one without room counts as unreadable.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use pgpalisade_wire::header::Header;

use crate::timers::Timers;

/// Messages up to this size need no room from the budget.
const FREE: usize = 16 * 1024;

/// The bytes left, as permits, and the time limit of a message.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Arc<Semaphore>,
    within: Duration,
}

impl Budget {
    /// Each message must arrive `within` this time.
    #[must_use]
    pub(crate) fn new(bytes: u32, within: Duration) -> Self {
        let left = Arc::new(Semaphore::new(bytes as usize));
        Self { left, within }
    }

    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = bytes.try_into().ok()?;
        let left = Arc::clone(&self.left);
        left.try_acquire_many_owned(bytes).ok()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Collecting(Option<(OwnedSemaphorePermit, Pin<Box<Sleep>>)>);

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
            let more = budget.take(here.saturating_sub(share.num_permits()));
            return more.map(|more| share.merge(more)).is_some();
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
    pub(crate) fn restart(&mut self, budget: &Budget) {
        if let Some((_, late)) = &mut self.0 {
            late.as_mut().reset(Instant::now() + budget.within);
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
        one.restart(&budget);
        assert!(!one.is_late(&mut context));
        one.done();
        assert!(wait(&mut two, LONG, 60 * 1024));
        assert!(!wait(&mut one, LONG, 60 * 1024));
        drop(two);
        assert_eq!(budget.left.available_permits(), 100 * 1024);
    }
}
