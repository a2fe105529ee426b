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
    let mode = values.choice(Key::TlsMode, &MODES)?;
    let files = [Key::TlsCertificate, Key::TlsKeyFile, Key::TlsClientCa];
    let files = files.map(|key| values.last(key, path));
    let certificates = values.choice(Key::TlsClientCertificates, &CERTIFICATES)?;
    values.accept(fit(mode, files, certificates))
}

fn fit(
    mode: Option<Plain>,
    files: [Option<PathBuf>; 3],
    certificates: ClientCertificates,
) -> Result<ClientTls, &'static str> {
    let Some(plain) = mode else {
        if certificates == ClientCertificates::Required {
            return Err(
                "tls.client_certificates is required, but tls.mode is off: write tls.mode = \"require\"",
            );
        }
        if files.iter().all(Option::is_none) {
            return Ok(ClientTls::Off);
        }
        return Err(
            "tls.mode is off, but files for TLS are given: write tls.mode = \"allow\" or \"require\"",
        );
    };
    let [Some(certificate), Some(key), client_ca] = files else {
        return Err(
            "tls.mode needs tls.certificate and tls.key: the certificate of this proxy and its private key",
        );
    };
    match (certificates, plain, &client_ca) {
        (ClientCertificates::Required, _, None) => {
            Err("tls.client_certificates is required, but tls.client_ca is not set")
        }
        (ClientCertificates::Required, Plain::Allowed, _) => Err(
            "tls.client_certificates is required, but a client without TLS has none: write tls.mode = \"require\"",
        ),
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

    fn finished(values: &[(Key, &str)]) -> Result<ClientTls, &'static str> {
        let last = |wanted: Key| {
            let value = values.iter().find(|(key, _)| *key == wanted);
            value.map(|(_, text)| *text)
        };
        let file = |key| last(key).map(PathBuf::from);
        let files = [Key::TlsCertificate, Key::TlsKeyFile, Key::TlsClientCa].map(file);
        let mode = choose(last(Key::TlsMode).unwrap_or("off"), &MODES);
        let certificates = last(Key::TlsClientCertificates).unwrap_or("optional");
        let certificates = choose(certificates, &CERTIFICATES);
        fit(mode.unwrap(), files, certificates.unwrap())
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
            (vec![required], "required, but tls.mode is off"),
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
