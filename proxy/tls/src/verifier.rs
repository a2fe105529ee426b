//! Servers that are verified in part, or not at all: what `require` and `verify-ca` stand for.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// Wants less of a server than that its certificate is for its name. The handshake proves in any case that the server
/// has the key of the certificate.
#[derive(Debug)]
pub(crate) struct Lenient {
    provider: Arc<CryptoProvider>,
    /// Whom the certificate has to lead to; without, every certificate is taken.
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl Lenient {
    /// Takes every certificate.
    pub(crate) const fn anybody(provider: Arc<CryptoProvider>) -> Self {
        Self {
            provider,
            chain: None,
        }
    }

    /// Wants a certificate that leads to a trusted root, in whose name ever it is.
    pub(crate) const fn any_name(
        provider: Arc<CryptoProvider>,
        chain: Arc<WebPkiServerVerifier>,
    ) -> Self {
        Self {
            provider,
            chain: Some(chain),
        }
    }
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        let verified =
            chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is looked at last: the chain is sound, and in time.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
