//! Bytes that may be sent to one peer but that its socket has not taken yet.

use std::io;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};

use super::{OUTBOX_HIGH_WATER, Socket};

/// Bytes on their way to one peer, in order.
///
/// The common case never copies: [`Outbox::send`] hands the caller's slice to the socket, and only
/// what the socket does not take is kept.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: BytesMut,
}

impl Outbox {
    /// Sends `bytes` behind whatever waits, as far as the socket takes them, and keeps the rest.
    ///
    /// # Errors
    ///
    /// The socket's own errors.
    #[inline]
    pub fn send(&mut self, socket: &Socket, bytes: &[u8]) -> io::Result<()> {
        if !self.waiting.is_empty() {
            self.waiting.extend_from_slice(bytes);
            return Ok(());
        }
        let sent = match socket.try_write(bytes) {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        self.waiting
            .extend_from_slice(bytes.get(sent..).unwrap_or_default());
        Ok(())
    }

    /// A place to write a message of the proxy's own, behind whatever waits.
    pub const fn tail(&mut self) -> &mut BytesMut {
        &mut self.waiting
    }

    /// Sends what waits; `Ready` where nothing is left, and then the memory is given back.
    ///
    /// # Errors
    ///
    /// The socket's own errors.
    #[inline]
    pub fn poll_flush(
        &mut self,
        socket: &mut Socket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        // It has memory only while something waits, or has just been sent.
        match self.waiting.capacity() {
            0 => Poll::Ready(Ok(())),
            _ => self.poll_flush_waiting(socket, cx),
        }
    }

    fn poll_flush_waiting(
        &mut self,
        socket: &mut Socket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            match socket.poll_write(cx, &self.waiting) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(sent)) => self.waiting.advance(sent),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        self.waiting = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    /// Bytes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether more may be added; if not, the other side must not be read.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.waiting.len() < OUTBOX_HIGH_WATER
    }
}
