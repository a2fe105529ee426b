//! The only writer to PostgreSQL.

mod admitted;
mod unfenced;

use std::io;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use pgpalisade_fence::Permit;
use postgres_protocol::message::frontend;

use crate::transport::{Outbox, Socket};
use admitted::Admitted;

pub(crate) use unfenced::PassthroughUpstream;

/// The server's side of a connection.
///
/// The client's bytes go out by [`Upstream::forward`], and only after permits were spent on them.
#[derive(Debug)]
pub(crate) struct Upstream {
    socket: Socket,
    outbox: Outbox,
    admitted: Admitted,
    send_side: SendSide,
}

/// State of the sending direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendSide {
    /// More bytes may follow.
    Open,
    /// The server has seen its end.
    Ended,
}

impl SendSide {
    fn poll_end(
        &mut self,
        outbox: &mut Outbox,
        socket: &Socket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if *self == Self::Open {
            ready!(outbox.poll_send_all(socket, cx))?;
            socket.shut_down_write();
            *self = Self::Ended;
        }
        Poll::Ready(Ok(()))
    }
}

impl Upstream {
    #[must_use]
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            outbox: Outbox::default(),
            admitted: Admitted::default(),
            send_side: SendSide::Open,
        }
    }

    /// Queues a permit for the next message.
    #[inline]
    pub(crate) fn admit(&mut self, permit: Permit) {
        self.admitted.push(permit);
    }

    /// Bytes still to come of a message that was begun.
    #[inline]
    #[must_use]
    pub(crate) const fn rest(&self) -> usize {
        self.admitted.rest()
    }

    /// Sends bytes of admitted messages.
    ///
    /// # Errors
    ///
    /// Socket errors; `PermissionDenied` for a message without a permit, which is not sent, nor are the bytes after
    /// it.
    #[inline]
    pub(crate) fn forward(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.admitted.spend(bytes)?;
        self.outbox.send(&self.socket, bytes)
    }

    /// Sends nothing more, and closes the sending direction, at which the server rolls back.
    pub(crate) fn abort(&mut self) {
        self.outbox = Outbox::default();
        self.socket.shut_down_write();
    }

    /// Sends the proxy's own messages, after what was forwarded.
    pub(crate) fn put_own(&mut self, messages: &[u8]) {
        self.outbox.put(&self.socket, messages);
    }

    /// Sets the task to wake: see [`Socket::belongs_to`].
    pub(crate) fn belongs_to(&self, cx: &Context<'_>) {
        self.socket.belongs_to(cx);
    }

    /// Whether more may be sent; if not, the client must not be read.
    #[inline]
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.has_room()
    }

    #[inline]
    #[must_use]
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbox.is_flushed(&self.socket)
    }

    #[inline]
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outbox.poll_flush(&self.socket, cx)
    }

    /// Whether the server has sent nothing: see [`Socket::is_awaited`].
    #[inline]
    #[must_use]
    pub(crate) fn is_awaited(&self, cx: &Context<'_>) -> bool {
        self.socket.is_awaited(cx)
    }

    /// Reads from the server: see [`Socket::poll_read`].
    #[inline]
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_read(cx, buf)
    }

    /// Says goodbye, except within an unfinished message, of which it would be taken for the rest.
    pub(crate) fn say_goodbye(&mut self) {
        if self.rest() == 0 {
            let mut goodbye = BytesMut::new();
            frontend::terminate(&mut goodbye);
            self.put_own(&goodbye);
        }
    }

    /// Sends what waits, and then closes the sending direction, even after a goodbye. Within COPY data a goodbye is
    /// an error, after which the server waits for more.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send_side.poll_end(&mut self.outbox, &self.socket, cx)
    }

    /// Whether the sending direction is closed.
    #[must_use]
    pub(crate) const fn is_ended(&self) -> bool {
        matches!(self.send_side, SendSide::Ended)
    }

    /// Closes the sending direction, and waits until the server has closed, which it does after its session ended.
    /// The caller bounds the wait.
    pub(crate) async fn closed(mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_end(cx)).await?;
        let mut rest = BytesMut::new();
        while self.socket.read_more(&mut rest).await.is_ok() {
            rest.clear();
        }
        Ok(())
    }
}
