//! TLS towards PostgreSQL.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::ServerName;

use crate::files::{self, FileError};
use crate::sslmode::{Root, SslMode, SslSettings};
use crate::state::{TlsError, TlsState};
use crate::verifier::Lenient;
use crate::{ALPN, provider};

/// TLS settings for servers, with the files as read.
#[derive(Debug, Clone)]
pub struct Connector {
    mode: SslMode,
    /// `None`: TLS is never used.
    config: Option<Arc<ClientConfig>>,
}

impl Connector {
    pub fn load(settings: &SslSettings) -> Result<Self, FileError> {
        let mode = settings.mode;
        let config = match mode {
            SslMode::Disable => None,
            _ => Some(Arc::new(config(settings)?)),
        };
        Ok(Self { mode, config })
    }

    /// Changes the protocol's ALPN name from PostgreSQL's.
    #[must_use]
    pub fn with_protocol(mut self, protocol: &[u8]) -> Self {
        if let Some(config) = &mut self.config {
            Arc::make_mut(config).alpn_protocols = vec![protocol.to_vec()];
        }
        self
    }

    #[must_use]
    pub const fn mode(&self) -> SslMode {
        self.mode
    }

    /// A session with the server `host`. A name is sent along (SNI), an address is not.
    ///
    /// # Errors
    ///
    /// TLS is disabled, or the name is invalid.
    pub fn session(&self, host: &str) -> Result<TlsState, TlsError> {
        let name =
            ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name(host.to_owned()))?;
        TlsState::connecting(self.config()?, name)
    }

    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        self.config.clone().ok_or(TlsError::Disabled)
    }
}

fn config(settings: &SslSettings) -> Result<ClientConfig, FileError> {
    let builder =
        ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier(settings)?);
    let mut config = match &settings.certificate {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = files::certificates(certificate)?;
            let pair = builder.with_client_auth_cert(chain, files::key(key)?);
            pair.map_err(|error| FileError::Pair {
                path: certificate.clone(),
                error,
            })?
        }
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// Chooses the verification. As in libpq, `require` verifies if there are trusted roots.
fn verifier(settings: &SslSettings) -> Result<Arc<dyn ServerCertVerifier>, FileError> {
    let roots = match &settings.root {
        None => return Ok(Arc::new(Lenient::anybody(provider()))),
        Some(Root::System) => files::system_roots()?,
        Some(Root::File(path)) => files::roots(path)?,
    };
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build()?;
    Ok(match settings.mode {
        SslMode::VerifyFull => verifier,
        _ => Arc::new(Lenient::any_name(provider(), verifier)),
    })
}
