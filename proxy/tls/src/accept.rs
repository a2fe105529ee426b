//! TLS towards those who connect to us.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use crate::files::{self, FileError};
use crate::session::{Session, TlsError};
use crate::{ALPN, provider};

/// The files of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptFiles {
    /// The certificate, and those between it and its root.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Who signs the certificates of clients. Without it they are not asked for one.
    pub client_ca: Option<PathBuf>,
}

/// What a listener shows and asks for, as its files were when they were read.
#[derive(Debug, Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
}

impl Acceptor {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn load(files: &AcceptFiles) -> Result<Self, FileError> {
        let chain = files::certificates(&files.certificate)?;
        let key = files::key(&files.key)?;
        let certificate = chain.first().cloned().unwrap_or_else(|| Vec::new().into());
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(files::roots(path)?);
                // Who has none is let in here, as by PostgreSQL: what is required is said in its own words later.
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                builder.with_client_cert_verifier(verifier.allow_unauthenticated().build()?)
            }
        };
        let mut config =
            builder
                .with_single_cert(chain, key)
                .map_err(|source| FileError::Pair {
                    path: files.certificate.clone(),
                    source,
                })?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // As PostgreSQL: every session is authenticated anew, by the files that are in force.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            certificate,
        })
    }

    /// A session that waits for a client's first bytes.
    ///
    /// # Errors
    ///
    /// Where the library refuses its settings.
    pub fn session(&self) -> Result<Session, TlsError> {
        Session::accepting(Arc::clone(&self.config))
    }

    /// The certificate that it shows, in DER.
    #[must_use]
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }
}
