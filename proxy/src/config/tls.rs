//! TLS to clients: the keys below `tls.`.

use std::path::PathBuf;

use pgpalisade_server::certificates::{ClientCertificates, ClientTls, Plain};
use pgpalisade_tls::AcceptFiles;

use super::key::Key;
use super::values::{Values, path};

/// No TLS, or what becomes of clients without it.
const MODES: [(&str, Option<Plain>); 3] = [
    ("off", None),
    ("allow", Some(Plain::Allowed)),
    ("require", Some(Plain::Refused)),
];
const CERTIFICATES: [(&str, ClientCertificates); 2] = [
    ("optional", ClientCertificates::Optional),
    ("required", ClientCertificates::Required),
];

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
    mode: Option<Plain>,
    (certificate, key, client_ca): (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>),
    certificates: ClientCertificates,
) -> Result<ClientTls, String> {
    let Some(plain) = mode else {
        if [certificate, key, client_ca].iter().all(Option::is_none) {
            return Ok(ClientTls::Off);
        }
        return Err(String::from(
            "tls.mode is off, but files for TLS are given: write tls.mode = \"allow\" or \"require\"",
        ));
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
