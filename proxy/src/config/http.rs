//! Address and access of HTTP: the keys that begin with `http`.

use std::net::SocketAddr;
use std::path::PathBuf;

use pgpalisade_tls::AcceptFiles;

use super::address::parse_listen;
use super::key::Key;
use super::values::{Values, path};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpAddr {
    /// Without token and CA, an address of this machine.
    pub address: SocketAddr,
    pub token_file: Option<PathBuf>,
    pub tls: Option<AcceptFiles>,
}

impl HttpAddr {
    pub(super) fn read(values: &mut Values<'_>) -> Option<Self> {
        let address = values.last(Key::Http, address);
        let token_file = values.last(Key::HttpTokenFile, path);
        let files = [Key::HttpCertificate, Key::HttpKeyFile, Key::HttpClientCa];
        let files = files.map(|key| values.last(key, path));
        values.accept(tls(files).and_then(|tls| fit(address, token_file, tls)))?
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let example = |_| format!("{text:?} is not an address: write IP:PORT, such as 127.0.0.1:6434");
    parse_listen(text).map_err(example)
}

fn tls(files: [Option<PathBuf>; 3]) -> Result<Option<AcceptFiles>, String> {
    match files {
        [Some(certificate), Some(key), client_ca] => Ok(Some(AcceptFiles {
            certificate,
            key,
            client_ca,
        })),
        [None, None, None] => Ok(None),
        [None, None, Some(_)] => Err(String::from(
            "http_client_ca needs http_certificate and http_key: clients show a certificate over TLS only",
        )),
        _ => Err(String::from(
            "http_certificate and http_key are needed together: the certificate for HTTP and its private key",
        )),
    }
}

fn fit(
    address: Option<SocketAddr>,
    token_file: Option<PathBuf>,
    tls: Option<AcceptFiles>,
) -> Result<Option<HttpAddr>, String> {
    let client_ca = tls.as_ref().and_then(|files| files.client_ca.as_ref());
    let is_asked = token_file.is_some() || client_ca.is_some();
    match address {
        None if token_file.is_none() && tls.is_none() => Ok(None),
        None => Err(format!(
            "{} is set, but http is not: write where to listen, such as http = \"127.0.0.1:6434\"",
            match tls {
                Some(_) => "http_certificate",
                None => "http_token_file",
            }
        )),
        Some(address) if !address.ip().is_loopback() && !is_asked => Err(format!(
            "http listens on {address}, which other machines may reach, and anybody there could read it: set \
             http_token_file, or http_client_ca, or listen on 127.0.0.1:{}",
            address.port()
        )),
        Some(address) => Ok(Some(HttpAddr {
            address,
            token_file,
            tls,
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(keys: [Option<&str>; 5]) -> Result<Option<HttpAddr>, String> {
        let address = keys[0].map(|text| text.parse().unwrap());
        let [_, token_file, certificate, key, client_ca] = keys.map(|key| key.map(PathBuf::from));
        fit(address, token_file, tls([certificate, key, client_ca])?)
    }

    #[test]
    fn who_has_to_show_nothing_is_on_this_machine() {
        let (token, files) = (Some("/token"), [Some("/crt"), Some("/key")]);
        let [crt, key] = files;
        assert_eq!(finished([None; 5]), Ok(None));
        for local in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1"] {
            for crt_and_key in [[None; 2], files] {
                let [crt, key] = crt_and_key;
                let local = [Some(local), None, crt, key, None];
                assert!(finished(local).is_ok(), "{local:?}");
            }
        }
        for open in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "[::ffff:127.0.0.1]:1"] {
            let open = Some(open);
            for nothing in [[open, None, None, None, None], [open, None, crt, key, None]] {
                let error = finished(nothing).unwrap_err();
                let ways = "set http_token_file, or http_client_ca, or listen on 127.0.0.1:1";
                assert!(error.contains(ways), "{error}");
            }
            for shown in [
                [open, token, None, None, None],
                [open, token, crt, key, None],
                [open, None, crt, key, Some("/ca")],
                [open, token, crt, key, Some("/ca")],
            ] {
                assert!(finished(shown).is_ok(), "{shown:?}");
            }
        }
    }

    #[test]
    fn keys_have_to_fit() {
        let (address, token) = (Some("127.0.0.1:1"), Some("/token"));
        let (crt, key, ca) = (Some("/crt"), Some("/key"), Some("/ca"));
        for (keys, part) in [
            (
                [None, token, None, None, None],
                "http_token_file is set, but http is not",
            ),
            (
                [None, None, crt, key, None],
                "http_certificate is set, but http is not",
            ),
            ([address, None, crt, None, None], "are needed together"),
            ([address, token, None, key, ca], "are needed together"),
            (
                [address, token, None, None, ca],
                "http_client_ca needs http_certificate",
            ),
        ] {
            let error = finished(keys).unwrap_err();
            assert!(error.contains(part), "{keys:?}: {error}");
        }
    }
}
