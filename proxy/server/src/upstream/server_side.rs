//! A server's connection and the state of its bytes.

use std::task::{Context, Poll};

use bytes::BytesMut;
use pgpalisade_takeover::PrimaryTerm;

use super::Upstream;
use crate::end_watch::EndWatch;

/// The server's connection and the state of its bytes.
pub(crate) struct ServerSide {
    pub(crate) upstream: Upstream,
    /// Bytes of an incomplete message.
    pub(crate) kept: BytesMut,
    /// The rest of a message whose header was handled.
    pub(crate) rest: Rest,
    /// Whether a declaration is under way. If the server has closed because it has ended the session, that will tell
    /// why.
    pub(crate) awaits_declaration: bool,
    /// The server's term as the primary, if known.
    term: Option<(PrimaryTerm, EndWatch)>,
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
    pub(crate) fn new(upstream: Upstream, kept: BytesMut, term: Option<PrimaryTerm>) -> Self {
        let watched = |term: PrimaryTerm| {
            let over = EndWatch::new(term.over());
            (term, over)
        };
        Self {
            term: term.map(watched),
            upstream,
            kept,
            rest: Rest::None,
            awaits_declaration: false,
        }
    }

    /// Whether the server is the primary no more.
    pub(crate) fn is_deposed(&self) -> bool {
        self.term.as_ref().is_some_and(|(term, _)| term.is_over())
    }

    /// Has the calling task woken once the server is the primary no more.
    pub(crate) fn register_end(&mut self, cx: &mut Context<'_>) {
        if let Some((_, over)) = &mut self.term {
            over.register(cx);
        }
    }

    /// Whether a part of a message, of the client or of the server, was moved, and the rest was not.
    pub(crate) fn is_midway(&self) -> bool {
        self.upstream.rest() > 0 || self.rest != Rest::None || !self.kept.is_empty()
    }

    /// Whether the server has said nothing since its last ReadyForQuery, and keeps the connection.
    pub(crate) fn is_quiet(&mut self, cx: &mut Context<'_>) -> bool {
        self.upstream.belongs_to(cx);
        let is_flushed = matches!(self.upstream.poll_flush(cx), Poll::Ready(Ok(())));
        is_flushed && !self.is_midway() && self.upstream.poll_read(cx, &mut [0; 64]).is_pending()
    }
}
