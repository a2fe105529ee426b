//! A client that takes nothing of what waits for it is given up: for it the server holds a session with its locks, or
//! keeps its write-ahead log.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use super::{Outbox, Socket};

/// Runs while a client takes nothing.
#[derive(Debug, Default)]
pub struct Stall(Option<Pin<Box<Sleep>>>);

/// Why nothing more is sent to a client.
#[derive(Debug)]
pub enum Unsent {
    /// Its socket failed.
    Socket(io::Error),
    /// It has taken no byte for too long.
    Stalled,
}

impl Stall {
    /// Sends what waits for a client, as far as its socket takes it. Without a limit it may take its time.
    ///
    /// # Errors
    ///
    /// [`Unsent`].
    #[inline]
    pub fn poll_flush(
        &mut self,
        outbox: &mut Outbox,
        client: &mut Socket,
        limit: Option<Duration>,
        cx: &mut Context<'_>,
    ) -> Result<(), Unsent> {
        let waiting = outbox.len();
        if waiting == 0 {
            return Ok(());
        }
        match outbox.poll_flush(client, cx) {
            Poll::Ready(Err(error)) => return Err(Unsent::Socket(error)),
            Poll::Ready(Ok(())) => self.0 = None,
            Poll::Pending if outbox.len() < waiting => self.0 = None,
            Poll::Pending => {}
        }
        match limit {
            Some(limit) if !outbox.is_empty() => self.check(limit, cx),
            _ => Ok(()),
        }
    }

    fn check(&mut self, limit: Duration, cx: &mut Context<'_>) -> Result<(), Unsent> {
        let sleep = || Box::pin(tokio::time::sleep(limit));
        match self.0.get_or_insert_with(sleep).as_mut().poll(cx) {
            Poll::Ready(()) => Err(Unsent::Stalled),
            Poll::Pending => Ok(()),
        }
    }
}
