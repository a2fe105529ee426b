//! Bytes that a peer's socket has not accepted yet.

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use pgpalisade_tls::TlsState;

use super::{OUTBOX_HIGH_WATER, Socket};

/// Bytes on their way to one peer, in order.
///
/// Few bytes go out with those of other connections ([`SendBatch`](super::SendBatch)), many at once. Only what the
/// socket does not accept is kept, encrypted if the socket is.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: BytesMut,
    /// Whether they wait because the socket had no room. Then they are sent alone, to see whether they move; otherwise
    /// they may go out with those of other connections.
    has_no_room: bool,
}

impl Outbox {
    /// Sends `bytes` after all that waits, at the latest at the end of the worker's turn.
    ///
    /// # Errors
    ///
    /// Socket errors, of this or an earlier send.
    #[inline]
    pub(crate) fn send(&mut self, socket: &Socket, bytes: &[u8]) -> io::Result<()> {
        match socket.tls() {
            None => self.send_raw(socket, bytes),
            Some(tls) => self.send_encrypted(socket, tls, bytes),
        }
    }

    fn send_encrypted(
        &mut self,
        socket: &Socket,
        tls: &RefCell<TlsState>,
        bytes: &[u8],
    ) -> io::Result<()> {
        let mut encrypted = BytesMut::new();
        tls.borrow_mut().encrypt(bytes, &mut encrypted)?;
        self.send_raw(socket, &encrypted)
    }

    #[inline]
    fn send_raw(&mut self, socket: &Socket, bytes: &[u8]) -> io::Result<()> {
        if self.waiting.is_empty() && socket.send_later(bytes) {
            Ok(())
        } else {
            self.send_now(socket, bytes)
        }
    }

    fn send_now(&mut self, socket: &Socket, bytes: &[u8]) -> io::Result<()> {
        self.settle(socket)?;
        if !self.waiting.is_empty() {
            self.waiting.extend_from_slice(bytes);
            return Ok(());
        }
        let sent = match socket.try_write(bytes) {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        if let Some(rest @ [_, ..]) = bytes.get(sent..) {
            self.waiting.extend_from_slice(rest);
            self.has_no_room = true;
        }
        Ok(())
    }

    /// Sends what is queued. Bytes that the socket does not accept go before what waits.
    #[inline]
    fn settle(&mut self, socket: &Socket) -> io::Result<()> {
        if socket.is_settled() {
            Ok(())
        } else {
            self.settle_queued(socket)
        }
    }

    fn settle_queued(&mut self, socket: &Socket) -> io::Result<()> {
        let mut returned = socket.settle()?;
        if !returned.is_empty() {
            returned.extend_from_slice(&self.waiting);
            self.waiting = returned;
            self.has_no_room = true;
        }
        Ok(())
    }

    pub(crate) fn put(&mut self, socket: &Socket, own: &[u8]) {
        let Some(tls) = socket.tls() else {
            self.waiting.extend_from_slice(own);
            return;
        };
        let encrypted = tls.borrow_mut().encrypt(own, &mut self.waiting);
        if let Err(error) = encrypted {
            // No cause is known. Nothing may follow without this message.
            tracing::error!(%error, "encrypting a message");
            socket.shut_down_write();
        }
    }

    /// Whether nothing waits and no memory is held.
    #[inline]
    #[must_use]
    pub(crate) fn is_flushed(&self, socket: &Socket) -> bool {
        self.waiting.capacity() == 0 && !socket.has_returned() && !socket.has_answer_of_tls()
    }

    /// Sends what waits. `Ready`: nothing waits, and the memory is freed. Bytes queued in the batch do not count: see
    /// [`Outbox::poll_send_all`].
    ///
    /// # Errors
    ///
    /// Socket errors, of this or an earlier send.
    #[inline]
    pub(crate) fn poll_flush(
        &mut self,
        socket: &Socket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_flushed(socket) {
            Poll::Ready(Ok(()))
        } else {
            self.poll_flush_waiting(socket, cx)
        }
    }

    fn poll_flush_waiting(
        &mut self,
        socket: &Socket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(tls) = socket.tls() {
            tls.borrow_mut().take_output(&mut self.waiting)?;
        }
        let is_new = !self.has_no_room && !self.waiting.is_empty();
        if is_new && socket.send_later(&self.waiting) {
            self.waiting = BytesMut::new();
            return Poll::Ready(Ok(()));
        }
        self.poll_send_all(socket, cx)
    }

    /// Sends what waits and what is queued. `Ready`: the system has all of it.
    ///
    /// # Errors
    ///
    /// Socket errors, of this or an earlier send.
    pub(crate) fn poll_send_all(
        &mut self,
        socket: &Socket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.settle(socket)?;
        while !self.waiting.is_empty() {
            match socket.poll_write(cx, &self.waiting) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(sent)) => self.waiting.advance(sent),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.has_no_room = true;
                    return Poll::Pending;
                }
            }
        }
        *self = Self::default();
        Poll::Ready(Ok(()))
    }

    #[must_use]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing is left to send, or nothing can be sent. Sends what is queued; if something remains, the task
    /// is woken to continue.
    #[must_use]
    pub(crate) fn is_done(&mut self, socket: &Socket) -> bool {
        self.settle(socket).is_err() || self.waiting.is_empty()
    }

    /// Whether more may be added; if not, the other side must not be read.
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < OUTBOX_HIGH_WATER
    }
}
