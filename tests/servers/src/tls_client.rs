//! TLS of a client of the wire protocol.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

#[derive(Debug, Clone)]
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, Clone)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
}

impl TlsClient {
    /// Presents a certificate if `own` is given.
    pub fn new(authority: &Path, own: Option<&Pair>) -> Self {
        Self::with(ring::default_provider(), authority, own)
    }

    /// Without a certificate, for TLS 1.3 with `TLS_AES_256_GCM_SHA384` only.
    pub fn pinned(authority: &Path) -> Self {
        let mut provider = ring::default_provider();
        provider.cipher_suites = vec![ring::cipher_suite::TLS13_AES_256_GCM_SHA384];
        Self::with(provider, authority, None)
    }

    fn with(provider: CryptoProvider, authority: &Path, own: Option<&Pair>) -> Self {
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_file_iter(authority).expect("a file of certificates") {
            roots.add(root.expect("a certificate")).expect("a root");
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(provider));
        let builder = builder
            .with_safe_default_protocol_versions()
            .expect("versions");
        let builder = builder.with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain =
                    vec![CertificateDer::from_pem_file(&pair.certificate).expect("a certificate")];
                let key = PrivateKeyDer::from_pem_file(&pair.key).expect("a key");
                builder.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        Self {
            config: Arc::new(config),
        }
    }

    /// Offers only these protocols (ALPN).
    #[must_use]
    pub fn speaking(mut self, protocols: &[&str]) -> Self {
        let protocols = protocols.iter().map(|name| name.as_bytes().to_vec());
        Arc::make_mut(&mut self.config).alpn_protocols = protocols.collect();
        self
    }

    pub fn connection(&self) -> ClientConnection {
        let name = "127.0.0.1".try_into().expect("an address");
        ClientConnection::new(Arc::clone(&self.config), name).expect("TLS")
    }
}
