//! The writer to PostgreSQL of a replication connection.

use std::io;
use std::task::{Context, Poll};

use pgpalisade_fence::ReplicationPermit;

use super::SendSide;
use crate::transport::{Outbox, Socket};

#[derive(Debug)]
pub(crate) struct PassthroughUpstream {
    socket: Socket,
    outbox: Outbox,
    send_side: SendSide,
}

impl PassthroughUpstream {
    #[must_use]
    pub(crate) fn new(socket: Socket, permit: ReplicationPermit) -> Self {
        let ReplicationPermit { .. } = permit;
        Self {
            socket,
            outbox: Outbox::default(),
            send_side: SendSide::Open,
        }
    }

    #[inline]
    pub(crate) fn forward(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.outbox.send(&self.socket, bytes)
    }

    pub(crate) fn belongs_to(&self, cx: &Context<'_>) {
        self.socket.belongs_to(cx);
    }

    #[inline]
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.has_room()
    }

    #[inline]
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outbox.poll_flush(&self.socket, cx)
    }

    #[inline]
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_read(cx, buf)
    }

    /// Sends what waits, and then closes the sending direction.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send_side.poll_end(&mut self.outbox, &self.socket, cx)
    }
}
