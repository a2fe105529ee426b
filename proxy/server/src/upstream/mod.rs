//! The only writer to PostgreSQL.

mod admitted;
mod unfenced;

use std::io;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use crate::fence::Permit;
use crate::transport::{Outbox, Socket};
use admitted::Admitted;

pub(crate) use unfenced::PassthroughUpstream;

/// The server's side of a connection.
///
/// The client's bytes go out by [`Upstream::forward`] and only as far as permits were spent on them.
#[derive(Debug)]
pub(crate) struct Upstream {
    socket: Socket,
    outbox: Outbox,
    admitted: Admitted,
    stream: Stream,
}

/// What the server is to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    /// There may be more.
    Open,
    /// It was shown the end.
    Ended,
}

impl Stream {
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
    /// A server that has finished its login.
    #[must_use]
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            outbox: Outbox::default(),
            admitted: Admitted::default(),
            stream: Stream::Open,
        }
    }

    /// Spends a permit on the next message.
    #[inline]
    pub(crate) fn admit(&mut self, permit: Permit) {
        self.admitted.push(permit);
    }

    /// Bytes of a message whose beginning was forwarded that are still to come.
    #[inline]
    #[must_use]
    pub(crate) const fn rest(&self) -> usize {
        self.admitted.rest()
    }

    /// Sends bytes of admitted messages.
    ///
    /// # Errors
    ///
    /// The socket's own errors; `PermissionDenied` for a message that no permit was spent on, which is not sent, nor
    /// what comes with it.
    #[inline]
    pub(crate) fn forward(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.admitted.spend(bytes)?;
        self.outbox.send(&self.socket, bytes)
    }

    /// Sends nothing more, and lets the server see the end of the connection, at which it rolls back.
    pub(crate) fn abort(&mut self) {
        self.outbox = Outbox::default();
        self.socket.shut_down_write();
    }

    /// Sends messages of the proxy's own, behind what was forwarded.
    pub(crate) fn put_own(&mut self, messages: &[u8]) {
        self.outbox.put(&self.socket, messages);
    }

    /// Notes which task to wake: see [`Socket::belongs_to`].
    pub(crate) fn belongs_to(&self, cx: &Context<'_>) {
        self.socket.belongs_to(cx);
    }

    /// Whether more may be sent; if not, the client must not be read.
    #[inline]
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.has_room()
    }

    /// Whether nothing waits to be sent.
    #[inline]
    #[must_use]
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbox.is_flushed(&self.socket)
    }

    /// Sends what waits.
    ///
    /// # Errors
    ///
    /// The socket's own errors.
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

    /// Reads what the server has sent: see [`Socket::poll_read`].
    ///
    /// # Errors
    ///
    /// The socket's own errors.
    #[inline]
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_read(cx, buf)
    }

    /// Says goodbye. Within a message of which not all has come, it would be taken for the rest of that.
    pub(crate) fn say_goodbye(&mut self) {
        if self.rest() == 0 {
            let mut goodbye = BytesMut::new();
            frontend::terminate(&mut goodbye);
            self.put_own(&goodbye);
        }
    }

    /// Sends what waits, and then shows the server the end: also behind a goodbye, which is an error within the data of
    /// a COPY, so that the server would wait for what comes next.
    ///
    /// # Errors
    ///
    /// The socket's own errors.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_end(&mut self.outbox, &self.socket, cx)
    }

    /// Whether the server was shown the end.
    #[must_use]
    pub(crate) const fn is_ended(&self) -> bool {
        matches!(self.stream, Stream::Ended)
    }

    /// Shows the server the end, and waits until it has closed its side, which is after its session ended.
    ///
    /// # Errors
    ///
    /// The socket's own errors. The caller bounds the wait.
    pub(crate) async fn closed(mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_end(cx)).await?;
        let mut rest = BytesMut::new();
        while self.socket.read_more(&mut rest).await.is_ok() {
            rest.clear();
        }
        Ok(())
    }
}
