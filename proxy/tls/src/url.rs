//! URLs of services that are asked over HTTP: `http://host[:port][?NAME=VALUE[&NAME=VALUE...]]`.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use crate::percent_decode;

/// Address of a service, of a URL without its query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    pub is_https: bool,
    /// An IPv6 address is in brackets.
    pub host: &'a str,
    pub port: Option<u16>,
}

impl<'a> Origin<'a> {
    /// `None` if the text does not begin with `http://` or `https://`, or names more or less than a host and a port.
    #[must_use]
    pub fn parse(url: &'a str) -> Option<Self> {
        let (is_https, address) = match url.strip_prefix("https://") {
            Some(address) => (true, address),
            None => (false, url.strip_prefix("http://")?),
        };
        let address = address.strip_suffix('/').unwrap_or(address);
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().ok()?)),
            _ => (address, None),
        };
        let named = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let is_valid = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']')?.parse::<Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(named),
        };
        is_valid.then_some(Self {
            is_https,
            host,
            port,
        })
    }
}

/// Reads the text after `?`. In values `%41` is the byte with the hexadecimal number 41.
///
/// # Errors
///
/// The reason. Quotes nothing of the text: people write passwords into URLs, with characters that cut them anywhere.
pub fn read_query(
    text: &str,
    names: &[&'static str],
) -> Result<BTreeMap<&'static str, String>, String> {
    let mut query = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(name) = names.iter().find(|known| **known == name) else {
            return Err(format!(
                "an option is not known: the options are {}",
                names.join(", ")
            ));
        };
        let value = percent_decode(value).ok_or_else(|| {
            format!("{name} has a % that does not begin two hexadecimal digits of UTF-8; write %25 for the character")
        })?;
        if value.is_empty() || query.insert(*name, value).is_some() {
            return Err(format!("write {name} once, with a value"));
        }
    }
    Ok(query)
}
