//! TLS of both legs and of HTTP, with the files read at start or at the last SIGHUP. All files are replaced together
//! or not at all.

use std::sync::Arc;

use parking_lot::RwLock;
use pgpalisade_tls::{ALPN, ALPN_HTTP, AcceptFiles, Acceptor, Connector, FileError, SslSettings};

/// TLS towards clients, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientTls {
    /// Clients that ask for TLS are told no.
    Off,
    /// Clients that ask for TLS get it.
    On {
        /// Certificate and key.
        files: AcceptFiles,
        /// Whether a session may be in the clear.
        plain: Plain,
        /// Whether a session needs a client certificate.
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

/// Client certificates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Verified if the client sends one.
    #[default]
    Optional,
    /// Required for every session.
    Required,
}

/// TLS towards clients.
#[derive(Debug)]
pub(crate) struct ClientLeg {
    /// The proxy's certificate and its settings.
    pub(crate) acceptor: Acceptor,
    /// Whether a session may be in the clear.
    pub(crate) plain: Plain,
    /// Whether a session needs a client certificate.
    pub(crate) certificates: ClientCertificates,
}

/// TLS settings from one reading of the files.
#[derive(Debug)]
pub struct Loaded {
    /// Towards clients.
    pub(crate) client: Option<ClientLeg>,
    /// Towards clients of HTTP.
    pub http: Option<Acceptor>,
    /// Towards PostgreSQL.
    pub(crate) upstream: Connector,
}

/// TLS for new connections. An open connection keeps the settings that it began with.
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
    /// A file that is not valid.
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

    /// Settings that were read last.
    pub fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.read())
    }

    /// Reads the files again. If one of them is not valid, all the old ones stay in force.
    ///
    /// # Errors
    ///
    /// A file that is not valid.
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
