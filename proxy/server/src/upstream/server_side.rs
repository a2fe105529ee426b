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
        // Of TLS, a part of a long record may have been read, which is no text yet.
        is_flushed
            && !self.is_midway()
            && self.upstream.poll_read(cx, &mut [0; 64]).is_pending()
            && self.upstream.is_drained()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use pgpalisade_test_servers::tls::{Authority, Pair};
    use pgpalisade_tls::{ALPN, AcceptFiles, Acceptor, Connector, SslMode, SslSettings};
    use tokio::net::UnixStream;

    use super::*;
    use crate::transport::{Batching, SendBatch, Socket};

    fn acceptor() -> Acceptor {
        let authority = Authority::new();
        let Pair { certificate, key } = authority.issue_local("server");
        let client_ca = None;
        let files = AcceptFiles {
            certificate,
            key,
            client_ca,
        };
        Acceptor::load(&files, ALPN).unwrap()
    }

    /// Both ends of an encrypted connection.
    async fn pair() -> (Socket, Socket) {
        let sends = Rc::new(SendBatch::new(Batching::Off));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let [mut ours, mut theirs] = [ours, theirs].map(|end| Socket::unix(end, &sends).unwrap());
        let settings = SslSettings {
            mode: SslMode::Require,
            ..SslSettings::default()
        };
        let client = Connector::load(&settings).unwrap().session("db").unwrap();
        let server = acceptor().session().unwrap();
        let (one, other) = tokio::join!(ours.begin_tls(client, &[]), theirs.begin_tls(server, &[]));
        one.and(other).unwrap();
        (ours, theirs)
    }

    async fn is_quiet(side: &mut ServerSide) -> bool {
        std::future::poll_fn(|cx| Poll::Ready(side.is_quiet(cx))).await
    }

    /// A record that is longer than what one look reads, such as PostgreSQL's last error.
    #[test]
    fn a_long_record_is_not_quiet() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build_local(Default::default());
        runtime.unwrap().block_on(async {
            let (mut ours, mut theirs) = pair().await;
            theirs.write_all(b"ready").await.unwrap();
            let mut read = BytesMut::new();
            ours.read_more(&mut read).await.unwrap();
            let mut side = ServerSide::new(Upstream::new(ours), BytesMut::new(), None);
            assert!(is_quiet(&mut side).await && is_quiet(&mut side).await);
            theirs.write_all(&[b'E'; 2000]).await.unwrap();
            // The runtime looks whether something has arrived.
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(!is_quiet(&mut side).await);
        });
    }
}
