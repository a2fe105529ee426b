//! TLS towards clients that connect to the proxy.

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
use crate::state::{TlsError, TlsState};
use crate::verifier::ShortChain;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptFiles {
    /// The certificate, then the intermediate ones.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// `None`: clients are not asked for one.
    pub client_ca: Option<PathBuf>,
}

/// TLS settings of a listener, with its files as read.
#[derive(Debug, Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
}

impl Acceptor {
    /// Reads the files, for a protocol with this ALPN name.
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
                // A client without a certificate is admitted here, as by PostgreSQL. A required one is demanded
                // later, in PostgreSQL's words.
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = ShortChain(verifier.allow_unauthenticated().build()?);
                builder.with_client_cert_verifier(Arc::new(verifier))
            }
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| FileError::Pair {
                path: files.certificate.clone(),
                error,
            })?;
        config.alpn_protocols = vec![protocol.to_vec()];
        // As in PostgreSQL, each session is authenticated anew, by the current files.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            certificate,
        })
    }

    /// A session that waits for a client's first bytes.
    pub fn session(&self) -> Result<TlsState, TlsError> {
        TlsState::accepting(Arc::clone(&self.config))
    }

    /// Does the handshake with a client, without a time limit. Also returns the client's valid certificate in DER, if
    /// it has shown one.
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

    /// In DER.
    #[must_use]
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }
}
