//! TLS towards those who connect to us.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use crate::files::{self, FileError};
use crate::provider;
use crate::session::{Session, TlsError};

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
    /// Reads the files, for a protocol by its name for ALPN.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn load(files: &AcceptFiles, protocol: &[u8]) -> Result<Self, FileError> {
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
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| FileError::Pair {
                path: files.certificate.clone(),
                error,
            })?;
        config.alpn_protocols = vec![protocol.to_vec()];
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

    /// The handshake with a client that has connected, for as long as it takes, and the client's own certificate, in
    /// DER, where it has shown one that is valid.
    ///
    /// # Errors
    ///
    /// The client broke the protocol, or is not to be trusted; the stream's own.
    pub async fn accept<S>(
        &self,
        stream: S,
    ) -> io::Result<(
        impl AsyncRead + AsyncWrite + Unpin + use<S>,
        Option<CertificateDer<'static>>,
    )>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.config));
        let stream = acceptor.accept(stream).await?;
        let (_, session) = stream.get_ref();
        let shown = session.peer_certificates().and_then(<[_]>::first).cloned();
        Ok((stream, shown))
    }

    /// The certificate that it shows, in DER.
    #[must_use]
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }
}
