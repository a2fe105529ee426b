//! Text after `etcd:` in `--authority`: endpoints, then options.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use pgpalisade_tls::percent_decode;

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

/// Error in the text, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionsError(String);

fn wrong<T>(why: impl Into<String>) -> Result<T, OptionsError> {
    Err(OptionsError(why.into()))
}

const NAMES: [&str; 6] = ["prefix", "ca", "cert", "key", "user", "password_file"];

struct Query(BTreeMap<&'static str, String>);

impl FromStr for Options {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, OptionsError> {
        if text.contains('@') {
            // Not quoted, because a password may be before it.
            return wrong(
                "a URL of etcd has no user and no password; write ?user=NAME&password_file=FILE, and %40 for an @",
            );
        }
        let (urls, query) = text.split_once('?').unwrap_or((text, ""));
        let urls = urls.split(',').filter(|url| !url.is_empty());
        let endpoints: Vec<_> = urls.map(endpoint).collect::<Result<_, _>>()?;
        let query = Query::parse(query)?;
        let Some(&(scheme, _)) = endpoints.first() else {
            return wrong(
                "no endpoint is given; write etcd:http://10.0.0.1:2379,http://10.0.0.2:2379",
            );
        };
        if endpoints.iter().any(|(other, _)| *other != scheme) {
            return wrong(
                "some endpoints are http:// and some https://; write one of them for all",
            );
        }
        let mut urls: Vec<String> = Vec::new();
        for (scheme, address) in &endpoints {
            let url = format!("{scheme}{address}");
            if !urls.contains(&url) {
                urls.push(url);
            }
        }
        Ok(Self {
            urls,
            tls: query.tls(scheme)?,
            login: query.login()?,
            prefix: query.prefix()?,
        })
    }
}

const HTTP: &str = "http://";
const HTTPS: &str = "https://";

/// The scheme of an endpoint, and its address with the port.
fn endpoint(url: &str) -> Result<(&'static str, String), OptionsError> {
    let refused = |why| {
        OptionsError(format!(
            "{url:?} is not an endpoint: {why}; write http://10.0.0.1:2379 or https://etcd-1.internal:2379"
        ))
    };
    let (scheme, rest) = [HTTP, HTTPS]
        .into_iter()
        .find_map(|scheme| Some((scheme, url.strip_prefix(scheme)?)))
        .ok_or_else(|| refused("it does not begin with http:// or https://"))?;
    let address = rest.strip_suffix('/').unwrap_or(rest);
    if address.contains(['/', '#']) {
        return Err(refused("an endpoint has no path"));
    }
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (address, None),
    };
    let in_brackets = host.starts_with('[') && host.ends_with(']');
    let named = !host.is_empty() && !host.contains(|c: char| "[]: ".contains(c));
    if !named && !in_brackets {
        return Err(refused("its host is missing or not valid"));
    }
    let port = port.map_or(Ok(DEFAULT_PORT), str::parse);
    let port = port.map_err(|_| refused("its port is not a number up to 65535"))?;
    Ok((scheme, format!("{host}:{port}")))
}

impl Query {
    fn parse(text: &str) -> Result<Self, OptionsError> {
        let mut query = BTreeMap::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(name) = NAMES.into_iter().find(|known| *known == name) else {
                return wrong(format!(
                    "{name:?} is not an option of etcd; the options are prefix, ca, cert, key, user and password_file"
                ));
            };
            let value = decode(value, name)?;
            if value.is_empty() {
                return wrong(format!("{name}= is not valid: it has no value"));
            }
            if query.insert(name, value).is_some() {
                return wrong(format!("{name} is given twice; write it once"));
            }
        }
        Ok(Self(query))
    }

    fn prefix(&self) -> Result<String, OptionsError> {
        let Some(value) = self.0.get("prefix") else {
            return Ok(DEFAULT_PREFIX.to_owned());
        };
        if value.chars().any(|c| !c.is_ascii_graphic()) || value.len() > 200 {
            return wrong(format!(
                "prefix={value} is not valid: write up to 200 printable ASCII characters, no spaces"
            ));
        }
        Ok(format!("{}/", value.strip_suffix('/').unwrap_or(value)))
    }

    fn tls(&self, scheme: &str) -> Result<Option<Tls>, OptionsError> {
        let client = match (self.0.get("cert"), self.0.get("key")) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            _ => return wrong("cert and key belong together; write both, or neither"),
        };
        match (self.0.get("ca"), scheme == HTTPS) {
            (Some(ca), true) => Ok(Some(Tls {
                ca: ca.into(),
                client,
            })),
            (None, true) => wrong(
                "https:// needs the certificate authority that signed etcd's certificates; write ?ca=FILE \
                 (for public ones: ?ca=/etc/ssl/certs/ca-certificates.crt)",
            ),
            (None, false) if client.is_none() => Ok(None),
            (_, false) => wrong(
                "ca, cert and key are for https:// endpoints; write https://, or leave them out",
            ),
        }
    }

    fn login(&self) -> Result<Option<Login>, OptionsError> {
        match (self.0.get("user"), self.0.get("password_file")) {
            (Some(user), Some(file)) => Ok(Some(Login {
                user: user.clone(),
                password_file: file.into(),
            })),
            (None, None) => Ok(None),
            (Some(_), None) => {
                wrong("the user of etcd has no password; write password_file=FILE too")
            }
            (None, Some(_)) => wrong("a password needs a user; write user=NAME too"),
        }
    }
}

fn decode(text: &str, what: &str) -> Result<String, OptionsError> {
    match percent_decode(text) {
        Some(text) => Ok(text),
        None => wrong(format!(
            "{what} has a % that is not followed by two hexadecimal digits; write %25 for the character itself"
        )),
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
    fn error(text: &str) -> OptionsError {
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
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }

    #[test]
    fn wrong_ones_say_what_to_write() {
        for (text, says) in [
            ("", "no endpoint is given"),
            ("?prefix=/x", "no endpoint is given"),
            ("10.0.0.1:2379", "begin with http://"),
            ("ftp://a", "begin with http://"),
            ("http://", "host is missing"),
            ("http://a:70000", "port is not a number"),
            ("http://a b", "host is missing or not valid"),
            ("http://a/v3", "no path"),
            ("http://::1", "host is missing or not valid"),
            ("http://a,https://b?ca=x", "some https://"),
            ("http://a?pre=1", "\"pre\" is not an option"),
            ("http://a?prefix=/a&prefix=/b", "prefix is given twice"),
            ("http://a?prefix=", "prefix= is not valid"),
            ("http://a?prefix=/x%20y", "prefix=/x y is not valid"),
            ("http://a?ca=%f", "ca has a %"),
            ("https://a", "write ?ca=FILE"),
            ("http://a?ca=x", "are for https://"),
            ("http://a?cert=x&key=y", "are for https://"),
            ("https://a?ca=x&cert=y", "belong together"),
            ("http://a?user=u", "has no password"),
            ("http://u@a", "has no user and no password"),
            ("http://a?password_file=f", "needs a user"),
        ] {
            let error = error(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
