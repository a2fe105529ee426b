//! Connection strings. Their TLS parameters are taken out: tokio-postgres knows half of the modes and none of the
//! files.

use std::error::Error as _;

use crate::client::Login;
use crate::sslmode::{SslSettings, Written};

impl Login {
    /// Reads a URL or `key=value` pairs. `pairs` is an example for the error message.
    ///
    /// # Errors
    ///
    /// The reason, without the text, which may contain a password.
    pub fn parse(dsn: &str, pairs: &str) -> Result<Self, String> {
        let (dsn, ssl) = SslSettings::take_from(dsn)?;
        let parsed = dsn.parse();
        let config = parsed.map_err(|error: tokio_postgres::Error| {
            // The outer error only says "invalid connection string". The inner one names the option, never its value.
            let reason = error.source().map(ToString::to_string);
            let is_of_an_option = |reason: &String| {
                reason.starts_with("unknown option")
                    || reason.starts_with("invalid value for option")
            };
            let why = reason
                .filter(is_of_an_option)
                .unwrap_or_else(|| format!("write postgres://user@host:port/db or {pairs}"));
            format!("is not a connection string: {why}")
        })?;
        Ok(Self { config, ssl })
    }
}

impl SslSettings {
    /// Takes the TLS parameters out of a URL or `key=value` pairs; `None` if there are none. Other errors are left to
    /// the reader of the rest.
    ///
    /// # Errors
    ///
    /// The reason, without any value.
    pub fn take_from(dsn: &str) -> Result<(String, Option<Self>), String> {
        let mut written = Written::default();
        let is_url = ["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| dsn.starts_with(scheme));
        let rest = match is_url {
            true => from_url(dsn, &mut written),
            false => from_pairs(dsn, &mut written),
        }?;
        Ok((rest, written.settings()?))
    }
}

fn from_url(url: &str, written: &mut Written) -> Result<String, String> {
    // Like tokio-postgres: a password before the @ may contain a ?.
    let host_at = url.find('@').map_or(0, |at| at + 1);
    let Some(query_at) = url.get(host_at..).and_then(|rest| rest.find('?')) else {
        return Ok(url.to_owned());
    };
    let (address, query) = url.split_at(host_at + query_at);
    let mut kept = Vec::new();
    for pair in query.trim_start_matches('?').split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if Written::takes(name) {
            let value = percent_decode(value)
                .ok_or_else(|| format!("has an {name} with a % that does not begin an escape"))?;
            written.add(name, value)?;
        } else if !pair.is_empty() {
            kept.push(pair);
        }
    }
    Ok(if kept.is_empty() {
        address.to_owned()
    } else {
        format!("{address}?{}", kept.join("&"))
    })
}

/// Decodes `%2F` and the like (RFC 3986, section 2.1). `None`: a % without two hexadecimal digits, or not UTF-8.
#[must_use]
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (high, low) = (digit()?, digit()?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

struct Pair<'a> {
    name: &'a str,
    value: String,
    whole: &'a str,
    rest: &'a str,
}

fn from_pairs(dsn: &str, written: &mut Written) -> Result<String, String> {
    let mut kept = Vec::new();
    let mut rest = dsn.trim_start();
    while let Some(pair) = first_pair(rest) {
        if !written.add(pair.name, pair.value)? {
            kept.push(pair.whole);
        }
        rest = pair.rest.trim_start();
    }
    if !rest.is_empty() {
        kept.push(rest);
    }
    Ok(kept.join(" "))
}

/// Parses the first pair. Spaces around the sign are allowed, a value may be in single quotes, and a backslash
/// escapes the next character:
/// <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-KEYWORD-VALUE>.
fn first_pair(text: &str) -> Option<Pair<'_>> {
    let sign = text.find('=')?;
    let (name, after) = (text.get(..sign)?.trim(), text.get(sign + 1..)?);
    let begins = after.trim_start();
    let (quoted, body) = match begins.strip_prefix('\'') {
        Some(body) => (true, body),
        None => (false, begins),
    };
    let mut value = String::new();
    let mut characters = body.char_indices();
    let end = loop {
        match characters.next() {
            Some((at, '\'')) if quoted => break at + 1,
            Some((at, c)) if !quoted && c.is_whitespace() => break at,
            Some((_, '\\')) => value.push(characters.next()?.1),
            Some((_, c)) => value.push(c),
            None if quoted => return None,
            None => break body.len(),
        }
    };
    let rest = body.get(end..)?;
    Some(Pair {
        name,
        value,
        whole: text.get(..text.len() - rest.len())?,
        rest,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::sslmode::{Root, SslMode};

    #[track_caller]
    fn taken(dsn: &str, rest: &str, expect: Option<SslSettings>) {
        assert_eq!(
            SslSettings::take_from(dsn),
            Ok((rest.to_owned(), expect)),
            "{dsn}"
        );
    }

    fn full(root: &str) -> Option<SslSettings> {
        Some(SslSettings {
            mode: SslMode::VerifyFull,
            root: Some(Root::File(root.into())),
            certificate: None,
        })
    }

    fn only(mode: SslMode) -> Option<SslSettings> {
        Some(SslSettings {
            mode,
            ..SslSettings::default()
        })
    }

    #[test]
    fn urls() {
        taken("postgres://u:p@h/d", "postgres://u:p@h/d", None);
        taken(
            "postgres://h/d?sslmode=require",
            "postgres://h/d",
            only(SslMode::Require),
        );
        taken(
            "postgresql://u:a?b@h/d?port=1&sslrootcert=%2Fx%20y&sslmode=verify-full&user=z",
            "postgresql://u:a?b@h/d?port=1&user=z",
            full("/x y"),
        );
    }

    #[test]
    fn pairs() {
        taken("host=h password='a b=c'", "host=h password='a b=c'", None);
        taken("sslmode = prefer host=h", "host=h", only(SslMode::Prefer));
        taken(
            r"host=h sslrootcert='/a b' password='x\' sslmode=disable' sslmode='verify-full'",
            r"host=h password='x\' sslmode=disable'",
            full("/a b"),
        );
        // The reader of the rest reports these errors.
        taken("host", "host", None);
        taken("password='hunter2", "password='hunter2", None);
    }

    #[track_caller]
    fn wrong(dsn: &str, part: &str) {
        let error = SslSettings::take_from(dsn).unwrap_err();
        assert!(error.contains(part), "{dsn}: {error}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        wrong("sslmode=on", "unknown sslmode");
        wrong("sslmode=allow", "prefer or require");
        wrong("sslrootcert=/r", "no sslmode");
        wrong("sslmode=verify-ca", "trusts no certificate authority");
        wrong("sslmode=verify-full", "trusts no certificate authority");
        wrong(
            "sslmode=verify-ca sslrootcert=system",
            "needs sslmode=verify-full",
        );
        wrong("sslmode=prefer sslrootcert=/r", "verifies nothing");
        wrong("sslmode=require sslcert=/c", "without the other");
        wrong("sslmode=require sslmode=disable", "twice");
        wrong("postgres://h?sslmode=require&sslmode=disable", "twice");
        wrong("postgres://h?sslmode=%zz", "does not begin an escape");
    }

    #[test]
    fn certificates_of_ones_own() {
        let (_, settings) = SslSettings::take_from("sslmode=require sslcert=/c sslkey=/k").unwrap();
        let pair = settings.unwrap().certificate;
        assert_eq!(pair, Some((PathBuf::from("/c"), PathBuf::from("/k"))));
    }
}
