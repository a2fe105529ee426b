//! Who may ask: whoever has the token, or, where there is none, whoever is on this machine.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST};
use subtle::ConstantTimeEq as _;

use crate::config::Secret;

/// A token may have so many bytes.
const TOKEN_MAX: u64 = 4096;
/// Less than this can be tried.
const TOKEN_MIN: usize = 16;

/// What is wrong with the file of the token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// It cannot be read.
    #[error("cannot read http_token_file {0}: {1}")]
    Read(PathBuf, io::Error),
    /// Whoever has the token may ask.
    #[error("everybody may read or write http_token_file {0}: chmod o-rwx")]
    Open(PathBuf),
    /// It is no token.
    #[error(
        "http_token_file {0} has to hold one line of {TOKEN_MIN} to {TOKEN_MAX} visible ASCII characters: \
         openssl rand -hex 32"
    )]
    Content(PathBuf),
}

/// Who may ask.
#[derive(Debug)]
pub(super) enum Access {
    /// Everybody who can connect. The configuration sees to it that those are on this machine.
    Local,
    /// Who has the token that stands in the file at that moment, so that another one counts at once.
    Token(PathBuf),
}

impl Access {
    pub(super) fn new(file: Option<&Path>) -> Result<Self, TokenError> {
        let Some(path) = file else {
            return Ok(Self::Local);
        };
        read(path)?;
        Ok(Self::Token(path.to_owned()))
    }

    /// Whether a request is meant for this proxy, and not sent by a page of the Web whose name has become this address
    /// (DNS rebinding): such a page has no token, but may be on this machine.
    pub(super) fn is_meant(&self, fields: &HeaderMap) -> bool {
        match self {
            Self::Local => names_this_machine(fields),
            Self::Token(_) => true,
        }
    }

    /// Whether the sender of these fields may have an answer.
    pub(super) fn admits(&self, fields: &HeaderMap) -> bool {
        let Self::Token(path) = self else {
            return true;
        };
        match read(path) {
            Ok(token) => shown(fields)
                .is_some_and(|shown| bool::from(shown.ct_eq(token.expose().as_bytes()))),
            Err(error) => {
                tracing::error!(%error, "nobody is answered over HTTP");
                false
            }
        }
    }
}

/// Whether the host of a request is this machine by its address, or by the name that every machine has for itself.
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

/// The token of `Authorization: Bearer ..`, whose scheme is in any case: RFC 9110, 11.1.
fn shown(fields: &HeaderMap) -> Option<&[u8]> {
    let mut all = fields.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (all.next(), all.next()) else {
        return None;
    };
    let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

fn read(path: &Path) -> Result<Secret<String>, TokenError> {
    let failed = |error| TokenError::Read(path.to_owned(), error);
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.permissions().mode() & 0o007 != 0 {
        return Err(TokenError::Open(path.to_owned()));
    }
    let mut text = String::new();
    let read = file.take(TOKEN_MAX + 2).read_to_string(&mut text);
    read.map_err(failed)?;
    let token = text.trim_end_matches(['\r', '\n']);
    let is_sound = (TOKEN_MIN..=TOKEN_MAX as usize).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    match is_sound {
        true => Ok(Secret::new(token.to_owned())),
        false => Err(TokenError::Content(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use hyper::header::HeaderValue;

    use super::*;

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
        let access = Access::new(Some(&file)).unwrap();
        for right in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef"] {
            assert!(access.admits(&fields(&[right])), "{right}");
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
            assert!(!access.admits(&fields(wrong)), "{wrong:?}");
        }
        write("another-token-of-mine");
        assert!(access.admits(&fields(&["Bearer another-token-of-mine"])));
        assert!(!access.admits(&fields(&["Bearer 0123456789abcdef"])));
        // What nobody can read, nobody can show.
        write("");
        assert!(!access.admits(&fields(&["Bearer "])));
        fs::remove_file(&file).unwrap();
        assert!(!access.admits(&fields(&["Bearer another-token-of-mine"])));
    }

    #[test]
    fn a_page_of_the_web_is_not_this_machine() {
        let is_meant = |hosts: &[&str]| {
            let mut fields = HeaderMap::new();
            for host in hosts {
                fields.append(HOST, HeaderValue::from_str(host).unwrap());
            }
            Access::Local.is_meant(&fields)
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
            Access::new(Some(&file)).unwrap_err().to_string()
        };
        let token = "0123456789abcdef";
        assert!(error(token, 0o644).contains("chmod o-rwx"));
        let long = "x".repeat(TOKEN_MAX as usize + 1);
        for text in [
            "",
            "short",
            "0123456789abcdef\nsecond",
            "0123456789 abcdef",
            &long,
        ] {
            let error = error(text, 0o600);
            assert!(error.contains("has to hold one line"), "{error}");
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
    }
}
