//! Wakes a task when something ends, with one registration for many waits.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

/// An end that the calling task looks for by itself each time that it is woken.
pub(crate) struct EndWatch {
    end: Pin<Box<dyn Future<Output = ()>>>,
    wakes: Option<Waker>,
    has_come: bool,
}

impl EndWatch {
    /// What is looked for must be there before `end` completes, or part of it completes, and stay.
    pub(crate) fn new(end: impl Future<Output = ()> + 'static) -> Self {
        Self {
            end: Box::pin(end),
            wakes: None,
            has_come: false,
        }
    }

    /// Has the calling task woken.
    #[inline]
    pub(crate) fn register(&mut self, cx: &mut Context<'_>) {
        let is_known = self
            .wakes
            .as_ref()
            .is_some_and(|by| by.will_wake(cx.waker()));
        if !is_known {
            self.register_another(cx);
        }
    }

    fn register_another(&mut self, cx: &mut Context<'_>) {
        self.wakes = Some(cx.waker().clone());
        self.has_come = self.has_come || self.end.as_mut().poll(cx).is_ready();
    }
}
