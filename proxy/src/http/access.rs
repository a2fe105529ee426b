//! Access to HTTP: by the token, or by a certificate; without either, for every client on this machine.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST};
use subtle::ConstantTimeEq as _;

use crate::config::HttpAddr;
use pgpalisade_tls::{Secret, read_secret};

const TOKEN_MAX: usize = 4096;
/// A shorter token could be guessed.
const TOKEN_MIN: usize = 16;

/// Without a token file and certificates, every client is admitted: the configuration ensures that such clients are on
/// this machine.
#[derive(Debug)]
pub(crate) struct Access {
    /// It is read each time, so that a new token counts at once.
    pub(super) token_file: Option<PathBuf>,
    pub(super) takes_certificates: bool,
}

impl Access {
    pub(crate) fn new(config: &HttpAddr) -> Result<Self, String> {
        let token_file = config.token_file.clone();
        token_file.as_deref().map(read).transpose()?;
        let tls = config.tls.as_ref();
        Ok(Self {
            token_file,
            takes_certificates: tls.is_some_and(|tls| tls.client_ca.is_some()),
        })
    }

    const fn is_local(&self) -> bool {
        self.token_file.is_none() && !self.takes_certificates
    }

    /// Whether a request is meant for this proxy. A Web page whose name now resolves to this address (DNS rebinding)
    /// has no token, but its browser may be on this machine.
    ///
    /// With a CA the Host is not compared, because Prometheus may find its targets by address. A browser shows its
    /// certificate only after the proxy's has matched the page's name.
    pub(super) fn is_meant(&self, fields: &HeaderMap) -> bool {
        !self.is_local() || names_this_machine(fields)
    }

    /// Whether a client sees more than a status, by a valid certificate or the token.
    pub(super) fn admits(&self, is_certified: bool, fields: &HeaderMap) -> bool {
        self.is_local()
            || (self.takes_certificates && is_certified)
            || self
                .token_file
                .as_deref()
                .is_some_and(|file| shows_token(fields, file))
    }
}

fn shows_token(fields: &HeaderMap, file: &Path) -> bool {
    match read(file) {
        Ok(token) => {
            shown(fields).is_some_and(|shown| bool::from(shown.ct_eq(token.expose().as_bytes())))
        }
        Err(error) => {
            tracing::error!(%error, "no token is accepted over HTTP");
            false
        }
    }
}

/// Whether the host of a request is this machine, by address or as `localhost`.
fn names_this_machine(fields: &HeaderMap) -> bool {
    let mut all = fields.get_all(HOST).iter();
    let (Some(host), None) = (all.next(), all.next()) else {
        return false;
    };
    let host = host.to_str().unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The token of `Authorization: Bearer ..`. The scheme is case-insensitive: RFC 9110, 11.1.
fn shown(fields: &HeaderMap) -> Option<&[u8]> {
    let mut all = fields.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (all.next(), all.next()) else {
        return None;
    };
    let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

fn read(path: &Path) -> Result<Secret<String>, String> {
    let text = read_secret(path).map_err(|error| format!("http_token_file: {error}"))?;
    let token = text.trim_end_matches(['\r', '\n']);
    let is_sound = (TOKEN_MIN..=TOKEN_MAX).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_sound {
        Ok(Secret::new(token.to_owned()))
    } else {
        Err(format!(
            "http_token_file {} must hold one line of {TOKEN_MIN} to {TOKEN_MAX} visible ASCII characters: \
             openssl rand -hex 32",
            path.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use hyper::header::HeaderValue;
    use pgpalisade_tls::AcceptFiles;

    use super::*;

    fn config(token_file: &Path) -> HttpAddr {
        HttpAddr {
            address: ([127, 0, 0, 1], 6434).into(),
            token_file: Some(token_file.to_owned()),
            tls: None,
        }
    }

    fn fields(values: &[&str]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for value in values {
            fields.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        fields
    }

    #[test]
    fn only_the_token_of_the_file_counts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let write = |text: &str| {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        };
        write("0123456789abcdef\n");
        let access = Access::new(&config(&file)).unwrap();
        let admits = |fields: &HeaderMap| access.admits(false, fields);
        for right in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef"] {
            assert!(admits(&fields(&[right])), "{right}");
        }
        for wrong in [
            &[][..],
            &["Bearer "],
            &["Bearer 0123456789abcdeF"],
            &["Bearer 0123456789abcdef "],
            &["Bearer 0123456789abcde"],
            &["Basic 0123456789abcdef"],
            &["0123456789abcdef"],
            &["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"],
        ] {
            assert!(!admits(&fields(wrong)), "{wrong:?}");
        }
        write("another-token-of-mine");
        assert!(admits(&fields(&["Bearer another-token-of-mine"])));
        assert!(!admits(&fields(&["Bearer 0123456789abcdef"])));
        // An unreadable token never matches.
        write("");
        assert!(!admits(&fields(&["Bearer "])));
        fs::remove_file(&file).unwrap();
        assert!(!admits(&fields(&["Bearer another-token-of-mine"])));
    }

    #[test]
    fn a_certificate_admits_where_a_ca_is_set() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, "0123456789abcdef").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let (none, token) = (fields(&[]), fields(&["Bearer 0123456789abcdef"]));
        let mut config = config(&file);
        for (with_token, client_ca, admitted) in [
            // Without a CA, certificates are neither asked for nor accepted.
            (true, None, [(true, &none, false), (false, &token, true)]),
            (
                false,
                Some("/ca"),
                [(true, &none, true), (false, &token, false)],
            ),
            (
                true,
                Some("/ca"),
                [(true, &none, true), (false, &token, true)],
            ),
        ] {
            config.token_file = with_token.then(|| file.clone());
            config.tls = Some(AcceptFiles {
                certificate: "/crt".into(),
                key: "/key".into(),
                client_ca: client_ca.map(PathBuf::from),
            });
            let access = Access::new(&config).unwrap();
            for (is_certified, fields, expect) in admitted {
                let admits = access.admits(is_certified, fields);
                assert_eq!(admits, expect, "{access:?} {is_certified} {fields:?}");
            }
            assert!(!access.admits(false, &none));
        }
    }

    #[test]
    fn a_page_of_the_web_is_not_this_machine() {
        let is_meant = |hosts: &[&str]| {
            let mut fields = HeaderMap::new();
            for host in hosts {
                fields.append(HOST, HeaderValue::from_str(host).unwrap());
            }
            let local = Access {
                token_file: None,
                takes_certificates: false,
            };
            local.is_meant(&fields)
        };
        for ours in [
            "127.0.0.1:6434",
            "127.9.9.9",
            "[::1]:6434",
            "localhost:1",
            "LOCALHOST",
        ] {
            assert!(is_meant(&[ours]), "{ours}");
        }
        for others in [
            &["evil.example:6434"][..],
            &["127.0.0.1.evil.example"],
            &["localhost.evil.example"],
            &["10.0.0.1"],
            &["[::2]"],
            &[""],
            &[],
            &["127.0.0.1", "evil.example"],
        ] {
            assert!(!is_meant(others), "{others:?}");
        }
    }

    #[test]
    fn a_file_that_is_no_secret_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let error = |text: &str, mode: u32| {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            Access::new(&config(&file)).unwrap_err()
        };
        let token = "0123456789abcdef";
        assert!(error(token, 0o644).contains("chmod o-rwx"));
        let long = "x".repeat(TOKEN_MAX + 1);
        for text in [
            "",
            "short",
            "0123456789abcdef\nsecond",
            "0123456789 abcdef",
            &long,
        ] {
            let error = error(text, 0o600);
            assert!(error.contains("must hold one line"), "{error}");
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
    }
}
