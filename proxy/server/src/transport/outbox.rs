//! Sending: bytes that a peer's socket has not accepted yet.

use std::io;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};

use super::shared_stream::SendState;
use super::{OUTBOX_HIGH_WATER, Socket};

/// Bytes on their way to one peer, in order.
///
/// Few bytes go out with those of other connections ([`SendBatch`](super::SendBatch)), many at once. Only what the
/// socket does not accept is kept, encrypted if the socket is.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: BytesMut,
    /// Whether they wait because the socket had no room. Then they are sent alone, to see whether they move; otherwise
    /// they may go out with those of other connections.
    has_no_room: bool,
}

impl Outbox {
    /// Whether nothing waits. Half a record may.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Socket {
    /// Sends `bytes` after all that waits, at the latest at the end of the worker's turn.
    ///
    /// # Errors
    ///
    /// Socket errors, of this or an earlier send.
    #[inline]
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.send_raw(bytes),
            Some(tls) => {
                let mut encrypted = BytesMut::new();
                tls.encrypt(bytes, &mut encrypted)?;
                self.send_raw(&encrypted)
            }
        }
    }

    #[inline]
    fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.outbox.waiting.is_empty() && self.send_later(bytes) {
            Ok(())
        } else {
            self.send_now(bytes)
        }
    }

    fn send_now(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.settle()?;
        let mut rest = bytes;
        if self.outbox.waiting.is_empty() {
            match self.try_write(bytes) {
                Ok(sent) => rest = bytes.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            self.outbox.has_no_room = !rest.is_empty();
        }
        self.outbox.waiting.extend_from_slice(rest);
        Ok(())
    }

    /// Sends what is queued in the batch. Bytes that the system does not accept go before what waits.
    #[inline]
    pub(super) fn settle(&mut self) -> io::Result<()> {
        if self.shared.status() == SendState::Sent {
            Ok(())
        } else {
            self.settle_queued()
        }
    }

    fn settle_queued(&mut self) -> io::Result<()> {
        if self.shared.status() == SendState::Queued {
            self.sends.flush();
        }
        if self.shared.status() == SendState::Returned {
            let mut returned = self.shared.take_returned()?;
            returned.extend_from_slice(&self.outbox.waiting);
            self.outbox.waiting = returned;
            self.outbox.has_no_room = true;
        }
        Ok(())
    }

    /// Adds the proxy's own messages to what waits.
    pub(crate) fn put(&mut self, own: &[u8]) {
        let Some(tls) = &mut self.tls else {
            self.outbox.waiting.extend_from_slice(own);
            return;
        };
        if let Err(error) = tls.encrypt(own, &mut self.outbox.waiting) {
            // No cause is known. Nothing may follow without this message.
            tracing::error!(%error, "encrypting a message");
            self.shut_down_write();
        }
    }

    /// Whether nothing waits and no memory is held.
    #[inline]
    #[must_use]
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbox.waiting.capacity() == 0
            && self.shared.status() != SendState::Returned
            && !self.has_answer_of_tls()
    }

    /// Sends what waits. `Ready`: nothing waits, and the memory is freed. Bytes queued in the batch do not count: see
    /// [`Self::poll_send_all`].
    ///
    /// # Errors
    ///
    /// Socket errors, of this or an earlier send.
    #[inline]
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_flushed() {
            Poll::Ready(Ok(()))
        } else {
            self.poll_flush_waiting(cx)
        }
    }

    fn poll_flush_waiting(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(tls) = &mut self.tls {
            tls.take_output(&mut self.outbox.waiting)?;
        }
        let is_new = !self.outbox.has_no_room && !self.outbox.waiting.is_empty();
        if is_new && self.send_later(&self.outbox.waiting) {
            self.outbox.waiting = BytesMut::new();
            return Poll::Ready(Ok(()));
        }
        self.poll_send_all(cx)
    }

    /// Sends what waits and what is queued. `Ready`: the system has all of it.
    ///
    /// # Errors
    ///
    /// Socket errors, of this or an earlier send.
    pub(crate) fn poll_send_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.settle()?;
        while !self.outbox.waiting.is_empty() {
            match self.poll_write(cx, &self.outbox.waiting) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(sent)) => self.outbox.waiting.advance(sent),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.outbox.has_no_room = true;
                    return Poll::Pending;
                }
            }
        }
        self.drop_waiting();
        Poll::Ready(Ok(()))
    }

    pub(crate) fn drop_waiting(&mut self) {
        self.outbox = Outbox::default();
    }

    /// Bytes that wait.
    #[must_use]
    pub(crate) fn waiting(&self) -> usize {
        self.outbox.waiting.len()
    }

    /// Whether nothing is left to send, or nothing can be sent. Sends what is queued; if something remains, the task
    /// is woken to continue.
    #[must_use]
    pub(crate) fn is_done(&mut self) -> bool {
        self.settle().is_err() || self.outbox.waiting.is_empty()
    }

    /// Whether more may be added; if not, the other side must not be read.
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.waiting.len() < OUTBOX_HIGH_WATER
    }
}
