//! State that the shared server connections of all workers have in common.

mod admissions;
#[cfg_attr(not(test), expect(dead_code, reason = "no connection is shared yet"))]
pub(crate) mod cancel_keys;
mod greeting;

use std::sync::Arc;

use bytes::Bytes;
use pgpalisade_logins::Credentials;

pub(crate) use admissions::Admissions;
pub(crate) use greeting::{Greeting, InitialReports};

#[derive(Debug, Clone, Default)]
pub(crate) struct Pooling {
    pub(crate) admissions: Admissions,
    pub(crate) cancel_keys: cancel_keys::CancelKeys,
}

/// A login that opens server connections for all clients that have it.
#[derive(Debug, Clone)]
pub(crate) struct SharedLogin {
    /// The startup packet. Clients with equal packets share connections.
    pub(crate) packet: Bytes,
    /// Kept while a client or a connection has them. `None`: the server must ask for nothing.
    pub(crate) credentials: Option<Arc<Credentials>>,
}
