//! Bytes that may be sent to one peer but that its socket has not taken yet.

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use pgpalisade_tls::Session as TlsSession;

use super::{OUTBOX_HIGH_WATER, Socket};

/// Bytes on their way to one peer, in order.
///
/// Few bytes go out with those of other connections ([`SendBatch`](super::SendBatch)), many by themselves, and only
/// what the socket does not take is kept here. Where the socket is encrypted, so is all that waits.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: BytesMut,
    reason: Reason,
}

/// Why bytes wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Reason {
    /// They have just been written: they may go out with those of other connections.
    #[default]
    New,
    /// The socket had no room. They are tried by themselves, so that it shows whether they move.
    NoRoom,
}

impl Outbox {
    /// Sends `bytes` behind whatever waits, at the latest when the worker's other connections had their turn.
    ///
    /// # Errors
    ///
    /// The socket's own errors, of this or of an earlier send.
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
        tls: &RefCell<TlsSession>,
        bytes: &[u8],
    ) -> io::Result<()> {
        let mut encrypted = BytesMut::new();
        tls.borrow_mut().encrypt(bytes, &mut encrypted)?;
        self.send_raw(socket, &encrypted)
    }

    #[inline]
    fn send_raw(&mut self, socket: &Socket, bytes: &[u8]) -> io::Result<()> {
        match self.waiting.is_empty() && socket.send_later(bytes) {
            true => Ok(()),
            false => self.send_now(socket, bytes),
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
            self.reason = Reason::NoRoom;
        }
        Ok(())
    }

    /// Sends what is queued. What the socket does not take of it stands in front of what waits.
    #[inline]
    fn settle(&mut self, socket: &Socket) -> io::Result<()> {
        match socket.is_settled() {
            true => Ok(()),
            false => self.settle_queued(socket),
        }
    }

    fn settle_queued(&mut self, socket: &Socket) -> io::Result<()> {
        let mut returned = socket.settle()?;
        if !returned.is_empty() {
            returned.extend_from_slice(&self.waiting);
            self.waiting = returned;
            self.reason = Reason::NoRoom;
        }
        Ok(())
    }

    /// Puts messages of the proxy's own behind whatever waits.
    pub(crate) fn put(&mut self, socket: &Socket, own: &[u8]) {
        let Some(tls) = socket.tls() else {
            self.waiting.extend_from_slice(own);
            return;
        };
        let encrypted = tls.borrow_mut().encrypt(own, &mut self.waiting);
        if let Err(error) = encrypted {
            // No reason for it is known. What follows must not be sent without it.
            tracing::error!(%error, "encrypting a message");
            socket.shut_down_write();
        }
    }

    /// Whether nothing waits: it has memory only while something does, or has just been sent.
    #[inline]
    #[must_use]
    pub(crate) fn is_flushed(&self, socket: &Socket) -> bool {
        self.waiting.capacity() == 0 && !socket.has_returned() && !socket.has_answer_of_tls()
    }

    /// Sends what waits; `Ready` where nothing is left, and then the memory is given back. What is queued to be sent
    /// with others does not wait: see [`Outbox::poll_send_all`].
    ///
    /// # Errors
    ///
    /// The socket's own errors, of this or of an earlier send.
    #[inline]
    pub(crate) fn poll_flush(
        &mut self,
        socket: &Socket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        match self.is_flushed(socket) {
            true => Poll::Ready(Ok(())),
            false => self.poll_flush_waiting(socket, cx),
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
        let is_new = self.reason == Reason::New && !self.waiting.is_empty();
        if is_new && socket.send_later(&self.waiting) {
            self.waiting = BytesMut::new();
            return Poll::Ready(Ok(()));
        }
        self.poll_send_all(socket, cx)
    }

    /// Sends what waits and what is queued; `Ready` where the system has all of it.
    ///
    /// # Errors
    ///
    /// The socket's own errors, of this or of an earlier send.
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
                    self.reason = Reason::NoRoom;
                    return Poll::Pending;
                }
            }
        }
        *self = Self::default();
        Poll::Ready(Ok(()))
    }

    /// Bytes that wait.
    #[must_use]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing is left to be sent, or nothing can be sent any more. Sends what is queued; where the socket
    /// does not take all of that, the task is woken to go on with it.
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
