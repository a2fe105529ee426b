//! The writer to PostgreSQL of a connection that is exempt as a whole.

use std::io;
use std::task::{Context, Poll};

use bytes::BytesMut;

use crate::fence::ReplicationPermit;
use crate::transport::{Outbox, Socket};

/// The server's side of a connection that may send whatever it likes.
#[derive(Debug)]
pub(crate) struct PassthroughUpstream {
    socket: Socket,
    outbox: Outbox,
}

impl PassthroughUpstream {
    /// A server that has finished its login. The passage is spent on the connection.
    #[must_use]
    pub(crate) fn new(socket: Socket, passage: ReplicationPermit) -> Self {
        let ReplicationPermit { .. } = passage;
        Self {
            socket,
            outbox: Outbox::default(),
        }
    }

    /// Sends bytes of the client.
    ///
    /// # Errors
    ///
    /// The socket's own errors.
    #[inline]
    pub(crate) fn forward(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.outbox.send(&self.socket, bytes)
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

    /// Sends what waits.
    ///
    /// # Errors
    ///
    /// The socket's own errors.
    #[inline]
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outbox.poll_flush(&self.socket, cx)
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

    /// Sends what waits, says that nothing more follows, and waits until the server has closed. What it still has to
    /// say is for nobody.
    ///
    /// # Errors
    ///
    /// The socket's own errors. The caller bounds the wait.
    pub(crate) async fn finish(mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.outbox.poll_send_all(&self.socket, cx)).await?;
        self.socket.shut_down_write();
        let mut rest = BytesMut::new();
        while self.socket.read_more(&mut rest).await.is_ok() {
            rest.clear();
        }
        Ok(())
    }
}
