//! TLS to clients: the keys below `tls.`, which must fit each other.

use std::path::PathBuf;

use pgpalisade_server::certificates::{ClientCertificates, ClientTls, Plain};
use pgpalisade_tls::AcceptFiles;

use super::key::Key;
use super::ready::path;
use super::values::Values;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TlsMode {
    Off,
    Allow,
    Require,
}

const MODES: [(&str, TlsMode); 3] = [
    ("off", TlsMode::Off),
    ("allow", TlsMode::Allow),
    ("require", TlsMode::Require),
];
const CERTIFICATES: [(&str, ClientCertificates); 2] = [
    ("optional", ClientCertificates::Optional),
    ("required", ClientCertificates::Required),
];

/// Reads all keys of TLS. An error says what does not fit.
pub(super) fn read(values: &mut Values<'_>) -> Option<ClientTls> {
    let mode = values.choice(Key::TlsMode, &MODES);
    let certificate = values.last(Key::TlsCertificate, path);
    let key = values.last(Key::TlsKeyFile, path);
    let client_ca = values.last(Key::TlsClientCa, path);
    let certificates = values.choice(Key::TlsClientCertificates, &CERTIFICATES);
    let together = fit(mode?, (certificate, key, client_ca), certificates?);
    together.map_err(|message| values.refuse(message)).ok()
}

fn fit(
    mode: TlsMode,
    (certificate, key, client_ca): (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>),
    certificates: ClientCertificates,
) -> Result<ClientTls, String> {
    let plain = match mode {
        TlsMode::Allow => Plain::Allowed,
        TlsMode::Require => Plain::Refused,
        TlsMode::Off => {
            let given = [certificate, key, client_ca];
            return if given.iter().any(Option::is_some) {
                Err(String::from(
                    "tls.mode is off, but files for TLS are given: write tls.mode = \"allow\" or \"require\"",
                ))
            } else {
                Ok(ClientTls::Off)
            };
        }
    };
    let (Some(certificate), Some(key)) = (certificate, key) else {
        return Err(String::from(
            "tls.mode needs tls.certificate and tls.key: the certificate of this proxy and its private key",
        ));
    };
    match (certificates, plain, &client_ca) {
        (ClientCertificates::Required, _, None) => Err(String::from(
            "tls.client_certificates is required, but tls.client_ca is not set",
        )),
        (ClientCertificates::Required, Plain::Allowed, _) => Err(String::from(
            "tls.client_certificates is required, but a client without TLS has none: write tls.mode = \"require\"",
        )),
        _ => Ok(ClientTls::On {
            files: AcceptFiles {
                certificate,
                key,
                client_ca,
            },
            plain,
            certificates,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::values::choose;
    use super::*;

    fn finished(values: &[(Key, &str)]) -> Result<ClientTls, String> {
        let last = |wanted: Key| {
            let value = values.iter().find(|(key, _)| *key == wanted);
            value.map(|(_, text)| *text)
        };
        let files = |key| last(key).map(PathBuf::from);
        fit(
            choose(last(Key::TlsMode).unwrap_or("off"), &MODES).unwrap(),
            (
                files(Key::TlsCertificate),
                files(Key::TlsKeyFile),
                files(Key::TlsClientCa),
            ),
            choose(
                last(Key::TlsClientCertificates).unwrap_or("optional"),
                &CERTIFICATES,
            )
            .unwrap(),
        )
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
                "but tls.client_ca is not set",
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
            (Plain::Refused, ClientCertificates::Required)
        );
    }
}
