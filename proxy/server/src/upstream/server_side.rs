//! A server's connection and the state of its bytes.

use std::task::{Context, Poll};

use bytes::BytesMut;

use super::Upstream;

/// The server's connection and the state of its bytes.
pub(crate) struct ServerSide {
    pub(crate) upstream: Upstream,
    /// Bytes of an incomplete message.
    pub(crate) kept: BytesMut,
    /// The rest of a message whose header was handled.
    pub(crate) rest: Rest,
    pub(crate) close: Close,
}

/// Effect of the server closing the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// The session ends.
    EndsSession,
    /// No effect yet if the server has ended the session: the declaration under way will tell why.
    AwaitsDeclaration,
}

/// The rest of a message whose header was handled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Rest {
    #[default]
    None,
    /// Bytes for the client.
    Relay(usize),
    /// Bytes to drop.
    Drop(usize),
}

impl ServerSide {
    pub(crate) fn new(upstream: Upstream, kept: BytesMut) -> Self {
        Self {
            upstream,
            kept,
            rest: Rest::None,
            close: Close::EndsSession,
        }
    }

    /// Whether the server has said nothing since its last ReadyForQuery, and keeps the connection.
    pub(crate) fn is_quiet(&mut self, cx: &mut Context<'_>) -> bool {
        self.upstream.belongs_to(cx);
        let is_flushed = matches!(self.upstream.poll_flush(cx), Poll::Ready(Ok(())));
        let nothing = self.kept.is_empty() && self.rest == Rest::None;
        is_flushed && nothing && self.upstream.poll_read(cx, &mut [0; 64]).is_pending()
    }
}
