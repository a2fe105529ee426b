//! The only writer to PostgreSQL.

mod admitted;
mod server_side;

use std::io;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use pgpalisade_fence::{Permit, ReplicationPermit};
use postgres_protocol::message::frontend;

use crate::transport::Socket;
use admitted::Admitted;

pub(crate) use server_side::{Rest, ServerSide};

/// The server's side of a connection.
///
/// The client's bytes go out by [`Upstream::forward`], after permits were spent on them, or on a connection that is
/// exempt by [`Upstream::forward_exempt`].
#[derive(Debug)]
pub(crate) struct Upstream {
    socket: Socket,
    admitted: Admitted,
    /// Whether the sending direction was closed in order.
    is_ended: bool,
}

impl Upstream {
    #[must_use]
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            admitted: Admitted::default(),
            is_ended: false,
        }
    }

    #[inline]
    pub(crate) fn admit(&mut self, permit: Permit) {
        self.admitted.push(permit);
    }

    #[inline]
    #[must_use]
    pub(crate) const fn rest(&self) -> usize {
        self.admitted.rest()
    }

    /// Sends bytes of admitted messages.
    ///
    /// # Errors
    ///
    /// Socket errors; `PermissionDenied` for a message without a permit. It and the bytes after it are not sent.
    #[inline]
    pub(crate) fn forward(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.admitted.spend(bytes)?;
        self.socket.send(bytes)
    }

    /// Sends bytes of a replication connection, which is exempt as a whole.
    #[inline]
    pub(crate) fn forward_exempt(
        &mut self,
        _exempt: &ReplicationPermit,
        bytes: &[u8],
    ) -> io::Result<()> {
        self.socket.send(bytes)
    }

    /// Closes the sending direction without further bytes; the server rolls back.
    pub(crate) fn abort(&mut self) {
        self.socket.shut_down_write();
        self.socket.drop_waiting();
    }

    pub(crate) fn put_own(&mut self, messages: &[u8]) {
        self.socket.put(messages);
    }

    pub(crate) fn belongs_to(&self, cx: &Context<'_>) {
        self.socket.belongs_to(cx);
    }

    #[inline]
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.socket.has_room()
    }

    #[inline]
    #[must_use]
    pub(crate) fn is_flushed(&self) -> bool {
        self.socket.is_flushed()
    }

    #[inline]
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_flush(cx)
    }

    #[inline]
    #[must_use]
    pub(crate) fn is_awaited(&self, cx: &Context<'_>) -> bool {
        self.socket.is_awaited(cx)
    }

    /// Whether all that has arrived was read.
    #[must_use]
    pub(crate) fn is_drained(&self) -> bool {
        self.socket.is_drained()
    }

    #[inline]
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_read(cx, buf)
    }

    /// Says goodbye, except within an unfinished message, where it would count as a part of it.
    pub(crate) fn say_goodbye(&mut self) {
        if self.rest() == 0 {
            let mut goodbye = BytesMut::new();
            frontend::terminate(&mut goodbye);
            self.put_own(&goodbye);
        }
    }

    /// Sends what waits, then closes the sending direction, even after a goodbye: within COPY data that is an error,
    /// after which the server waits for more.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_ended {
            ready!(self.socket.poll_send_all(cx))?;
            self.socket.shut_down_write();
            self.is_ended = true;
        }
        Poll::Ready(Ok(()))
    }

    #[must_use]
    pub(crate) const fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Closes the sending direction, and waits until the server has closed, which it does after its session ended. A
    /// connection that fails may be cut, and its session live on. The caller bounds the wait.
    pub(crate) async fn closed(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_end(cx)).await?;
        let mut rest = BytesMut::new();
        loop {
            match self.socket.read_more(&mut rest).await {
                Ok(()) => rest.clear(),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}
