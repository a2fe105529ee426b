//! Listeners whose sessions get their token from the proxy: the key `listener`.

use std::fmt;
use std::str::FromStr as _;

use pgpalisade_authority::Scope;
use pgpalisade_policies::DEFAULT_SCOPE;
use pgpalisade_server::leadership::Without;
use pgpalisade_server::listener::ListenAddr;
use serde::Deserialize;

use super::key::Key;
use super::listen;
use super::values::{Values, choose};

const WITHOUT: [(&str, Without); 2] = [("read", Without::Read), ("refuse", Without::Refuse)];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenListener {
    pub listen: Vec<ListenAddr>,
    /// Scope for whose lease the proxy campaigns.
    pub scope: Scope,
    pub without: Without,
}

/// A table as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenListener {
    listen: Addresses,
    token: String,
    without: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "an address, or a list of addresses")]
enum Addresses {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
struct Wrapped {
    listener: WrittenListener,
}

impl TokenListener {
    pub(super) fn read(values: &mut Values<'_>) -> Vec<Self> {
        let listeners = values.last_list(Key::Listener, parse, |_| true);
        listeners.unwrap_or_default()
    }
}

impl fmt::Display for TokenListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.listen.iter().map(ListenAddr::to_string).collect();
        f.write_str(&addresses.join(", "))
    }
}

/// Parses an inline table.
fn parse(text: &str) -> Result<TokenListener, String> {
    let written = toml::from_str(&format!("listener = {text}"));
    let Wrapped { listener } = written.map_err(|error| error.message().to_owned())?;
    let listen = match listener.listen {
        Addresses::One(address) => vec![address],
        Addresses::Several(addresses) => addresses,
    };
    if listen.is_empty() {
        return Err("listen is empty".to_owned());
    }
    let without = listener.without.as_deref().unwrap_or("read");
    Ok(TokenListener {
        listen: listen
            .iter()
            .map(|one| listen::parse(one))
            .collect::<Result<_, _>>()?,
        scope: scope(&listener.token)?,
        without: choose(without, &WITHOUT).map_err(|message| format!("without: {message}"))?,
    })
}

fn scope(token: &str) -> Result<Scope, String> {
    let (scope, source) = token.split_once('=').unwrap_or((DEFAULT_SCOPE, token));
    if source != "lease" {
        return Err(format!("token: {token:?}: write SCOPE=lease"));
    }
    Scope::from_str(scope).map_err(|error| format!("token: {scope:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(addresses: &[&str], scope: &str, without: Without) -> TokenListener {
        let listen = addresses.iter().map(|text| listen::parse(text).unwrap());
        TokenListener {
            listen: listen.collect(),
            scope: Scope::new(scope).unwrap(),
            without,
        }
    }

    #[test]
    fn a_listener_is_a_table() {
        for (text, expect) in [
            (
                r#"{ listen = "127.0.0.1:1", token = "lease" }"#,
                listener(&["127.0.0.1:1"], "default", Without::Read),
            ),
            (
                r#"{ listen = ["[::1]:1", "/run"], token = "a=lease", without = "refuse" }"#,
                listener(&["[::1]:1", "/run"], "a", Without::Refuse),
            ),
        ] {
            assert_eq!(parse(text), Ok(expect), "{text}");
        }
        let with = |more: &str| format!(r#"{{ listen = "127.0.0.1:1"{more} }}"#);
        for (text, part) in [
            (with(""), "missing field `token`"),
            (
                r#"{ token = "lease" }"#.to_owned(),
                "missing field `listen`",
            ),
            (
                with(r#", token = "lease", wait = 1"#),
                "unknown field `wait`",
            ),
            (with(r#", token = "a=34""#), "write SCOPE=lease"),
            (with(r#", token = "a=lease:3s""#), "write SCOPE=lease"),
            (with(r#", token = "=lease""#), "token: \"\""),
            (
                with(r#", token = "lease", without = "x""#),
                "without: \"x\": write read or refuse",
            ),
            (
                r#"{ listen = [], token = "lease" }"#.to_owned(),
                "listen is empty",
            ),
            (
                r#"{ listen = 1, token = "lease" }"#.to_owned(),
                "an address, or a list",
            ),
            (
                r#"{ listen = "x", token = "lease" }"#.to_owned(),
                "not an address to listen on",
            ),
            ("127.0.0.1:1".to_owned(), ""),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
