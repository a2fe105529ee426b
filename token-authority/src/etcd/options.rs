//! Text after `etcd:` in `--authority`: endpoints, then options.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use pgpalisade_tls::{Origin, read_query};

/// Default prefix of all keys.
pub const DEFAULT_PREFIX: &str = "/pgpalisade/";
const DEFAULT_PORT: u16 = 2379;

/// Endpoints and login of an etcd cluster. Parsed from `URL[,URL...][?NAME=VALUE[&NAME=VALUE...]]`.
///
/// URLs are `http://host[:port]`, or all of them `https://`. Names are `prefix`, `ca`, `cert`, `key`, `user` and
/// `password_file`. In values `%41` is the byte with the hexadecimal number 41, as in every URL.
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    pub(super) urls: Vec<String>,
    pub(super) prefix: String,
    pub(super) tls: Option<Tls>,
    pub(super) login: Option<Login>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tls {
    pub(super) ca: PathBuf,
    pub(super) client: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password_file: PathBuf,
}

const NAMES: [&str; 6] = ["prefix", "ca", "cert", "key", "user", "password_file"];

impl FromStr for Options {
    /// Error in the text, with the remedy.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('@') {
            // Not quoted, because a password may be before it.
            return wrong(
                "a URL of etcd has no user and no password; write ?user=NAME&password_file=FILE, and %40 for an @",
            );
        }
        let (listed, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut urls, mut https) = (Vec::new(), None);
        for url in listed.split(',').filter(|url| !url.is_empty()) {
            let Some(Origin {
                is_https,
                host,
                port,
            }) = Origin::parse(url)
            else {
                return Err(format!(
                    "{url:?} is not an endpoint; write http://10.0.0.1:2379 or https://etcd-1.internal:2379"
                ));
            };
            if *https.get_or_insert(is_https) != is_https {
                return wrong(
                    "some endpoints are http:// and some https://; write one of them for all",
                );
            }
            let scheme = if is_https { "https" } else { "http" };
            let url = format!("{scheme}://{host}:{}", port.unwrap_or(DEFAULT_PORT));
            if !urls.contains(&url) {
                urls.push(url);
            }
        }
        let Some(is_https) = https else {
            return wrong(
                "no endpoint is given; write etcd:http://10.0.0.1:2379,http://10.0.0.2:2379",
            );
        };
        let query = read_query(query, &NAMES)?;
        Ok(Self {
            urls,
            tls: tls(&query, is_https)?,
            login: login(&query)?,
            prefix: prefix(&query)?,
        })
    }
}

fn wrong<T>(why: &str) -> Result<T, String> {
    Err(why.to_owned())
}

type Query = BTreeMap<&'static str, String>;

fn prefix(query: &Query) -> Result<String, String> {
    let Some(value) = query.get("prefix") else {
        return Ok(DEFAULT_PREFIX.to_owned());
    };
    if value.chars().any(|c| !c.is_ascii_graphic()) || value.len() > 200 {
        return Err(format!(
            "prefix={value} is not valid: write up to 200 printable ASCII characters, no spaces"
        ));
    }
    Ok(format!("{}/", value.strip_suffix('/').unwrap_or(value)))
}

fn tls(query: &Query, is_https: bool) -> Result<Option<Tls>, String> {
    let client = match (query.get("cert"), query.get("key")) {
        (Some(cert), Some(key)) => Some((cert.into(), key.into())),
        (None, None) => None,
        _ => return wrong("cert and key belong together; write both, or neither"),
    };
    match (query.get("ca"), is_https) {
        (Some(ca), true) => Ok(Some(Tls {
            ca: ca.into(),
            client,
        })),
        (None, true) => wrong(
            "https:// needs the certificate authority that signed etcd's certificates; write ?ca=FILE \
             (for public ones: ?ca=/etc/ssl/certs/ca-certificates.crt)",
        ),
        (None, false) if client.is_none() => Ok(None),
        (_, false) => {
            wrong("ca, cert and key are for https:// endpoints; write https://, or leave them out")
        }
    }
}

fn login(query: &Query) -> Result<Option<Login>, String> {
    match (query.get("user"), query.get("password_file")) {
        (Some(user), Some(file)) => Ok(Some(Login {
            user: user.clone(),
            password_file: file.into(),
        })),
        (None, None) => Ok(None),
        _ => wrong("user and password_file belong together; write both, or neither"),
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}?prefix={}", self.urls.join(","), self.prefix)?;
        if let Some(Tls { ca, client }) = &self.tls {
            write!(f, "&ca={}", ca.display())?;
            if let Some((cert, key)) = client {
                write!(f, "&cert={}&key={}", cert.display(), key.display())?;
            }
        }
        if let Some(Login {
            user,
            password_file,
        }) = &self.login
        {
            write!(f, "&user={user}&password_file={}", password_file.display())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn shown(text: &str) -> String {
        text.parse::<Options>().unwrap().to_string()
    }

    #[track_caller]
    fn error(text: &str) -> String {
        text.parse::<Options>().map(|o| o.to_string()).unwrap_err()
    }

    #[test]
    fn good_ones() {
        for (text, expect) in [
            (
                "http://10.0.0.1:2379",
                "http://10.0.0.1:2379?prefix=/pgpalisade/",
            ),
            (
                "http://a,http://[::1],http://a:2379/",
                "http://a:2379,http://[::1]:2379?prefix=/pgpalisade/",
            ),
            ("http://[::1]:1?prefix=x", "http://[::1]:1?prefix=x/"),
            (
                "https://a:1,https://b:2?ca=/ca.pem&cert=/c.pem&key=/k.pem",
                "https://a:1,https://b:2?prefix=/pgpalisade/&ca=/ca.pem&cert=/c.pem&key=/k.pem",
            ),
            (
                "http://a?user=me&password_file=/p",
                "http://a:2379?prefix=/pgpalisade/&user=me&password_file=/p",
            ),
        ] {
            assert_eq!(shown(text), expect, "{text}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        for text in [
            "http://me:secret@a",
            "me:secret@a",
            "http://me:secret,x@a",
            "http://me:1?secret@a",
            "http://me:secret?x@a",
        ] {
            let error = error(text);
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn wrong_ones_say_what_to_write() {
        for (text, says) in [
            ("", "no endpoint is given"),
            ("?prefix=/x", "no endpoint is given"),
            ("10.0.0.1:2379", "is not an endpoint; write http://"),
            ("ftp://a", "is not an endpoint"),
            ("http://", "is not an endpoint"),
            ("http://a:70000", "is not an endpoint"),
            ("http://a b", "is not an endpoint"),
            ("http://a/v3", "is not an endpoint"),
            ("http://::1", "is not an endpoint"),
            ("http://a,https://b?ca=x", "some https://"),
            ("http://a?pre=1", "the options are prefix, ca,"),
            ("http://a?prefix=/a&prefix=/b", "write prefix once"),
            ("http://a?prefix=", "write prefix once, with a value"),
            ("http://a?prefix=/x%20y", "prefix=/x y is not valid"),
            ("http://a?ca=%f", "ca has a %"),
            ("https://a", "write ?ca=FILE"),
            ("http://a?ca=x", "are for https://"),
            ("http://a?cert=x&key=y", "are for https://"),
            ("https://a?ca=x&cert=y", "belong together"),
            ("http://a?user=u", "belong together"),
            ("http://u@a", "has no user and no password"),
            ("http://a?password_file=f", "belong together"),
        ] {
            let error = error(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
