//! TLS to clients: the keys below `tls.`, which have to fit each other.

use std::path::PathBuf;

use pgpalisade_tls::AcceptFiles;

use super::key::Key;

/// What clients may and must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClientTls {
    /// No client is answered that there is TLS.
    Off,
    /// Who asks for it gets it.
    On {
        /// Certificate and key.
        files: AcceptFiles,
        /// Whether a session may be without it.
        plain: Plain,
        /// Whether a session may be without a certificate of the client.
        certificates: Certificates,
    },
}

/// Sessions in the clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plain {
    /// Served.
    Allowed,
    /// Refused.
    Refused,
}

/// Certificates of clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Certificates {
    /// Verified where there is one.
    #[default]
    Optional,
    /// Every session needs one.
    Required,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Off,
    Allow,
    Require,
}

/// Values that were good by themselves.
#[derive(Debug, Default)]
pub(super) struct TlsKeys {
    mode: Option<Mode>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    certificates: Option<Certificates>,
}

impl TlsKeys {
    /// Takes over a value of one of these keys; any other is none of its business.
    pub(super) fn set(&mut self, key: Key, text: &str) -> Result<(), String> {
        match key {
            Key::TlsMode => self.mode = Some(mode(text)?),
            Key::TlsCertificate => self.certificate = Some(super::ready::path(text)?),
            Key::TlsKeyFile => self.key = Some(super::ready::path(text)?),
            Key::TlsClientCa => self.client_ca = Some(super::ready::path(text)?),
            Key::TlsClientCertificates => self.certificates = Some(certificates(text)?),
            _ => {}
        }
        Ok(())
    }

    /// All of them together, or what does not fit.
    pub(super) fn finish(&self) -> Result<ClientTls, String> {
        let plain = match self.mode {
            Some(Mode::Allow) => Plain::Allowed,
            Some(Mode::Require) => Plain::Refused,
            Some(Mode::Off) | None => {
                let given = [&self.certificate, &self.key, &self.client_ca];
                return match given.into_iter().any(Option::is_some) {
                    true => Err(String::from(
                        "tls.mode is off, and files for TLS are given: write tls.mode = \"allow\" or \"require\"",
                    )),
                    false => Ok(ClientTls::Off),
                };
            }
        };
        let (Some(certificate), Some(key)) = (self.certificate.clone(), self.key.clone()) else {
            return Err(String::from(
                "tls.mode needs tls.certificate and tls.key: the certificate of this proxy and its private key",
            ));
        };
        let certificates = self.certificates.unwrap_or_default();
        match (certificates, plain, &self.client_ca) {
            (Certificates::Required, _, None) => Err(String::from(
                "tls.client_certificates is required, and tls.client_ca does not say who signs them",
            )),
            (Certificates::Required, Plain::Allowed, _) => Err(String::from(
                "tls.client_certificates is required, and a client without TLS has none: write tls.mode = \"require\"",
            )),
            _ => Ok(ClientTls::On {
                files: AcceptFiles {
                    certificate,
                    key,
                    client_ca: self.client_ca.clone(),
                },
                plain,
                certificates,
            }),
        }
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "off" => Ok(Mode::Off),
        "allow" => Ok(Mode::Allow),
        "require" => Ok(Mode::Require),
        _ => Err(format!("{text:?}: write off, allow or require")),
    }
}

fn certificates(text: &str) -> Result<Certificates, String> {
    match text {
        "optional" => Ok(Certificates::Optional),
        "required" => Ok(Certificates::Required),
        _ => Err(format!("{text:?}: write optional or required")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(values: &[(Key, &str)]) -> Result<ClientTls, String> {
        let mut keys = TlsKeys::default();
        for (key, text) in values {
            keys.set(*key, text).unwrap();
        }
        keys.finish()
    }

    #[test]
    fn keys_have_to_fit() {
        use Key::{TlsCertificate, TlsClientCa, TlsClientCertificates, TlsKeyFile, TlsMode};
        let (crt, key, ca) = (
            (TlsCertificate, "/c"),
            (TlsKeyFile, "/k"),
            (TlsClientCa, "/a"),
        );
        let required = (TlsClientCertificates, "required");
        assert_eq!(finished(&[]), Ok(ClientTls::Off));
        assert_eq!(finished(&[(TlsMode, "off")]), Ok(ClientTls::Off));
        for (values, part) in [
            (vec![crt], "tls.mode is off"),
            (vec![(TlsMode, "off"), ca], "tls.mode is off"),
            (
                vec![(TlsMode, "allow"), crt],
                "needs tls.certificate and tls.key",
            ),
            (
                vec![(TlsMode, "require"), key],
                "needs tls.certificate and tls.key",
            ),
            (
                vec![(TlsMode, "require"), crt, key, required],
                "who signs them",
            ),
            (
                vec![(TlsMode, "allow"), crt, key, ca, required],
                "a client without TLS has none",
            ),
        ] {
            let error = finished(&values).unwrap_err();
            assert!(error.contains(part), "{values:?}: {error}");
        }
        let on = finished(&[(TlsMode, "require"), crt, key, ca, required]).unwrap();
        let ClientTls::On {
            files,
            plain,
            certificates,
        } = on
        else {
            unreachable!();
        };
        assert_eq!(files.client_ca, Some("/a".into()));
        assert_eq!(
            (plain, certificates),
            (Plain::Refused, Certificates::Required)
        );
    }
}
