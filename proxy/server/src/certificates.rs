//! TLS of both legs and of HTTP. All files are replaced together or not at all.

use std::sync::Arc;

use parking_lot::RwLock;
use pgpalisade_tls::{ALPN, ALPN_HTTP, AcceptFiles, Acceptor, Connector, FileError, SslSettings};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientTls {
    Off,
    On {
        files: AcceptFiles,
        /// Whether a session may be unencrypted.
        plain: Plain,
        certificates: ClientCertificates,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain {
    Allowed,
    Refused,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    #[default]
    Optional,
    Required,
}

#[derive(Debug)]
pub(crate) struct ClientLeg {
    pub(crate) acceptor: Acceptor,
    pub(crate) plain: Plain,
    pub(crate) certificates: ClientCertificates,
}

#[derive(Debug)]
pub struct Loaded {
    pub(crate) client: Option<ClientLeg>,
    pub http: Option<Acceptor>,
    pub(crate) upstream: Connector,
}

/// TLS for new connections. Open ones keep their settings.
#[derive(Debug)]
pub struct Certificates {
    client: ClientTls,
    http: Option<AcceptFiles>,
    upstream: SslSettings,
    loaded: RwLock<Arc<Loaded>>,
}

impl Certificates {
    pub fn load(
        client: ClientTls,
        http: Option<AcceptFiles>,
        upstream: SslSettings,
    ) -> Result<Self, FileError> {
        let loaded = Loaded::read(&client, http.as_ref(), &upstream)?;
        let loaded = RwLock::new(Arc::new(loaded));
        Ok(Self {
            client,
            http,
            upstream,
            loaded,
        })
    }

    pub fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.read())
    }

    /// Reads the files again. If one is invalid, nothing changes.
    pub fn reload(&self) -> Result<(), FileError> {
        let is_clear = self.client == ClientTls::Off && self.http.is_none();
        if is_clear && self.upstream == SslSettings::default() {
            return Ok(());
        }
        let loaded = Loaded::read(&self.client, self.http.as_ref(), &self.upstream);
        let loaded = loaded.inspect_err(|error| {
            tracing::error!(%error, "the files for TLS are not valid: the old ones stay in force");
        })?;
        *self.loaded.write() = Arc::new(loaded);
        tracing::info!("the files for TLS were read again: new connections use them");
        Ok(())
    }
}

impl Loaded {
    fn read(
        client: &ClientTls,
        http: Option<&AcceptFiles>,
        upstream: &SslSettings,
    ) -> Result<Self, FileError> {
        let client = match client {
            ClientTls::Off => None,
            ClientTls::On {
                files,
                plain,
                certificates,
            } => Some(ClientLeg {
                acceptor: Acceptor::load(files, ALPN)?,
                plain: *plain,
                certificates: *certificates,
            }),
        };
        Ok(Self {
            client,
            http: http
                .map(|files| Acceptor::load(files, ALPN_HTTP))
                .transpose()?,
            upstream: Connector::load(upstream)?,
        })
    }
}
