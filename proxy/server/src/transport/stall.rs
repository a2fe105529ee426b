//! Time limit for a client that accepts no byte: the server keeps its session with locks or write-ahead log.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use super::Socket;
use crate::timers::Timers;

/// Runs while a client accepts nothing.
#[derive(Debug, Default)]
pub(crate) struct Stall(Option<Pin<Box<Sleep>>>);

#[derive(Debug)]
pub(crate) struct StallLimit {
    /// `None`: no limit.
    pub(crate) time: Option<Duration>,
    pub(crate) timers: Timers,
}

#[derive(Debug)]
pub(crate) enum Unsent {
    Socket(io::Error),
    /// The client has accepted no byte for too long.
    Stalled,
}

impl Stall {
    #[inline]
    pub(crate) const fn is_running(&self) -> bool {
        self.0.is_some()
    }

    #[inline]
    pub(crate) fn poll_flush(
        &mut self,
        client: &mut Socket,
        limit: &StallLimit,
        cx: &mut Context<'_>,
    ) -> Result<(), Unsent> {
        let waiting = client.waiting();
        match client.poll_flush(cx) {
            Poll::Ready(Ok(())) => {
                self.0 = None;
                return Ok(());
            }
            Poll::Ready(Err(error)) => return Err(Unsent::Socket(error)),
            Poll::Pending if client.waiting() < waiting => self.0 = None,
            Poll::Pending => {}
        }
        let Some(time) = limit.time else {
            return Ok(());
        };
        let sleep = || Box::pin(limit.timers.sleep(time));
        match self.0.get_or_insert_with(sleep).as_mut().poll(cx) {
            Poll::Ready(()) => Err(Unsent::Stalled),
            Poll::Pending => Ok(()),
        }
    }
}
