//! TLS of both legs, with the files as they were read last: at the start, and on SIGHUP.

use std::sync::Arc;

use parking_lot::RwLock;
use pgpalisade_tls::{Acceptor, Connector, FileError, SslSettings};

use crate::config::{ClientCertificates, ClientTls, Config, Plain};

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

/// Both legs, of one reading of the files.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// Towards clients.
    pub(crate) client: Option<ClientLeg>,
    /// Towards PostgreSQL.
    pub(crate) upstream: Connector,
}

/// What logins use. A session that has begun keeps what it began with.
#[derive(Debug)]
pub(crate) struct Certificates {
    client: ClientTls,
    upstream: SslSettings,
    loaded: RwLock<Arc<Loaded>>,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub(crate) fn load(config: &Config) -> Result<Self, FileError> {
        Self::of(config.clients.tls.clone(), config.upstream.ssl.clone())
    }

    /// As [`Self::load`].
    pub(crate) fn of(client: ClientTls, upstream: SslSettings) -> Result<Self, FileError> {
        let loaded = RwLock::new(Arc::new(Loaded::read(&client, &upstream)?));
        Ok(Self {
            client,
            upstream,
            loaded,
        })
    }

    /// What was read last.
    pub(crate) fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.read())
    }

    /// Reads the files again. Where one of them is not sound, all the old ones stay in force.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub(crate) fn reload(&self) -> Result<(), FileError> {
        if self.client == ClientTls::Off && self.upstream == SslSettings::default() {
            return Ok(());
        }
        let loaded = Loaded::read(&self.client, &self.upstream).inspect_err(|error| {
            tracing::error!(%error, "the files for TLS are not valid: the old ones stay in force");
        })?;
        *self.loaded.write() = Arc::new(loaded);
        tracing::info!("the files for TLS were read again: new connections use them");
        Ok(())
    }
}

impl Loaded {
    fn read(client: &ClientTls, upstream: &SslSettings) -> Result<Self, FileError> {
        let client = match client {
            ClientTls::Off => None,
            ClientTls::On {
                files,
                plain,
                certificates,
            } => Some(ClientLeg {
                acceptor: Acceptor::load(files)?,
                plain: *plain,
                certificates: *certificates,
            }),
        };
        Ok(Self {
            client,
            upstream: Connector::load(upstream)?,
        })
    }
}
