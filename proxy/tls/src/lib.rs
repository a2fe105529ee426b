//! TLS of both legs: certificates and keys from files, a session without I/O, and libpq's `sslmode`.
//!
//! An [`Acceptor`] and a [`Connector`] make [`TlsState`]s, which turn bytes into other bytes. [`Login`] and
//! [`ClientSession`] are for tokio-postgres, [`Secret`] is for values that no log may show, and [`read_file`] for
//! files with secrets.

mod accept;
mod client;
mod client_session;
mod connect;
mod dsn;
mod files;
mod secret;
mod several_hosts;
mod sslmode;
mod state;
mod url;
mod verifier;

pub use accept::{AcceptFiles, Acceptor};
pub use client::{ConnectError, ForHost, Login, Negotiated, Stream, words};
pub use client_session::{ClientSession, Said};
pub use connect::Connector;
pub use dsn::percent_decode;
pub use files::{FileError, Holds, OPEN_TO_ALL, is_open_to_all, read_file, read_secret};
pub use secret::Secret;
pub use sslmode::{Root, SslMode, SslSettings};
pub use state::{TlsError, TlsState};
pub use url::{Origin, read_query};

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// PostgreSQL's ALPN name: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-SSL>.
pub const ALPN: &[u8] = b"postgresql";

/// ALPN name of HTTP/1.1: <https://www.rfc-editor.org/rfc/rfc7301#section-6>.
pub const ALPN_HTTP: &[u8] = b"http/1.1";

/// SSLRequest: its length and code. The server answers `S`, or `N` without TLS.
pub const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// Explicit, so that the process needs no default.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
