//! TLS of both legs, with the files as they were read last: at the start, and on SIGHUP. That of HTTP is with them, so
//! that all files are replaced together or not at all.

use std::sync::Arc;

use parking_lot::RwLock;
use pgpalisade_tls::{ALPN, ALPN_HTTP, AcceptFiles, Acceptor, Connector, FileError, SslSettings};

/// What clients may and must do about TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientTls {
    /// No client is answered that there is TLS.
    Off,
    /// Who asks for it gets it.
    On {
        /// Certificate and key.
        files: AcceptFiles,
        /// Whether a session may be without it.
        plain: Plain,
        /// Whether a session may be without a certificate of the client.
        certificates: ClientCertificates,
    },
}

/// Sessions in the clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain {
    /// Served.
    Allowed,
    /// Refused.
    Refused,
}

/// Certificates of clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Verified where there is one.
    #[default]
    Optional,
    /// Every session needs one.
    Required,
}

/// TLS towards clients, where there is some.
#[derive(Debug)]
pub(crate) struct ClientLeg {
    /// What a client is shown.
    pub(crate) acceptor: Acceptor,
    /// Whether a session may be in the clear.
    pub(crate) plain: Plain,
    /// Whether a session may be without a certificate of the client.
    pub(crate) certificates: ClientCertificates,
}

/// All of it, of one reading of the files.
#[derive(Debug)]
pub struct Loaded {
    /// Towards clients.
    pub(crate) client: Option<ClientLeg>,
    /// Towards those who ask over HTTP.
    pub http: Option<Acceptor>,
    /// Towards PostgreSQL.
    pub(crate) upstream: Connector,
}

/// What logins and requests use. A connection that has begun keeps what it began with.
#[derive(Debug)]
pub struct Certificates {
    client: ClientTls,
    http: Option<AcceptFiles>,
    upstream: SslSettings,
    loaded: RwLock<Arc<Loaded>>,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
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

    /// What was read last.
    pub fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.read())
    }

    /// Reads the files again. Where one of them is not sound, all the old ones stay in force.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
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
