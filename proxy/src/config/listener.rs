//! Listeners whose sessions get their token from the proxy: the key `listener`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr as _;

use pgpalisade_authority::Scope;
use pgpalisade_elect::{Cluster, LeaseName, LockSpec};
use pgpalisade_policies::{DEFAULT_SCOPE, PoolMode};
use pgpalisade_server::leadership::Without;
use pgpalisade_server::listener::ListenAddr;
use serde::Deserialize;

use super::Environment;
use super::key::Key;
use super::listen;
use super::values::{Values, choose, path};

const WITHOUT: [(&str, Without); 2] = [("read", Without::Read), ("refuse", Without::Refuse)];

const FORMS: &str = "write lease (of scope default), SCOPE=lease, SCOPE=etcd:KEY, \
    SCOPE=kubernetes:NAMESPACE/NAME or SCOPE=file:PATH";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenListener {
    pub listen: Vec<ListenAddr>,
    pub scope: Scope,
    pub source: TokenSource,
    pub without: Without,
    /// Time for which its sessions have a server connection, if it is not that of the proxy.
    pub pool: Option<PoolMode>,
    /// Program and arguments.
    pub on_loss: Vec<String>,
}

/// What makes the proxy lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenSource {
    /// The lease of the scope.
    Lease,
    /// An election's key in the etcd of the token authority.
    Etcd {
        key: String,
        identity: String,
    },
    Kubernetes {
        cluster: Cluster,
        lease: LeaseName,
        identity: String,
    },
    File(PathBuf),
}

/// A table as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenListener {
    listen: Addresses,
    token: String,
    identity: Option<String>,
    kubernetes: Option<String>,
    without: Option<String>,
    pool: Option<String>,
    #[serde(default)]
    on_loss: Vec<String>,
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
    pub(super) fn read(values: &mut Values<'_>, environment: &Environment) -> Vec<Self> {
        let read = |text: &str| parse(text, environment);
        let listeners = values.last_list(Key::Listener, read, |_| true);
        let listeners = listeners.unwrap_or_default();
        let differs = listeners.iter().enumerate().find(|(at, later)| {
            let mut earlier = listeners.iter().take(*at);
            earlier.any(|first| !first.leads_as(later))
        });
        if let Some((_, Self { scope, .. })) = differs {
            values.refuse(format!(
                "listener: two of scope {scope} differ in token, identity, kubernetes or on_loss: a scope has one lead"
            ));
        }
        listeners
    }

    /// Whether both can be given by one leadership, or are of different scopes.
    fn leads_as(&self, other: &Self) -> bool {
        self.scope != other.scope
            || (&self.source, &self.on_loss) == (&other.source, &other.on_loss)
    }
}

impl fmt::Display for TokenListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.listen.iter().map(ListenAddr::to_string).collect();
        f.write_str(&addresses.join(", "))
    }
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease => f.write_str("lease"),
            Self::Etcd { key, .. } => write!(f, "etcd:{key}"),
            Self::Kubernetes { lease, .. } => write!(f, "kubernetes:{lease}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// Parses an inline table.
fn parse(text: &str, environment: &Environment) -> Result<TokenListener, String> {
    let text = format!("listener = {text}");
    let written = toml::from_str(&text);
    let Wrapped { listener } = written.map_err(|error| in_words(&text, &error))?;
    let (scope, source) = token(&listener, environment)?;
    let listen = match listener.listen {
        Addresses::One(address) => vec![address],
        Addresses::Several(addresses) => addresses,
    };
    if listen.is_empty() {
        return Err("listen is empty".to_owned());
    }
    let without = listener.without.as_deref().unwrap_or("read");
    let pool = match listener.pool.as_deref() {
        None => None,
        Some("session") => Some(PoolMode::Session),
        Some(_) => return Err("pool: write \"session\", or nothing".to_owned()),
    };
    Ok(TokenListener {
        listen: listen
            .iter()
            .map(|one| listen::parse(one))
            .collect::<Result<_, _>>()?,
        scope,
        source,
        without: choose(without, &WITHOUT).map_err(|message| format!("without: {message}"))?,
        pool,
        on_loss: listener.on_loss,
    })
}

/// The error with the key of its value, if it is one of a value.
fn in_words(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|at| text.get(..at.start));
    let key = before.and_then(|before| before.trim_end().strip_suffix('='));
    let key = key.and_then(|key| key.rsplit(['{', ',']).next());
    match key.map(str::trim).filter(|key| *key != "listener") {
        Some(key) => format!("{key}: {}", error.message()),
        None => error.message().to_owned(),
    }
}

/// Reads the key `token`, and those that belong to its source.
fn token(
    listener: &WrittenListener,
    environment: &Environment,
) -> Result<(Scope, TokenSource), String> {
    let WrittenListener {
        token,
        identity,
        kubernetes,
        ..
    } = listener;
    // The name of a key or file may contain `=`, that of a scope does not.
    let is_source = ["etcd:", "kubernetes:", "file:"]
        .iter()
        .any(|kind| token.starts_with(kind));
    let (scope, source) = match token.split_once('=') {
        Some(parts) if !is_source => parts,
        _ => (DEFAULT_SCOPE, token.as_str()),
    };
    let wrong = |error: String| format!("token: {token:?}: {error}");
    let scope = Scope::from_str(scope).map_err(|error| wrong(error.to_string()))?;
    let own = || identity.clone().unwrap_or_else(host);
    let source = match source.split_once(':') {
        Some(("file", file)) => TokenSource::File(path(file).map_err(wrong)?),
        _ => match source.parse() {
            Ok(LockSpec::Lease) => TokenSource::Lease,
            Ok(LockSpec::Etcd(key)) => TokenSource::Etcd {
                key,
                identity: own(),
            },
            Ok(LockSpec::Kubernetes(lease)) => TokenSource::Kubernetes {
                cluster: cluster(kubernetes.as_deref(), environment)?,
                lease,
                identity: own(),
            },
            Ok(LockSpec::AdvisoryLock(_)) | Err(_) => return Err(wrong(FORMS.to_owned())),
        },
    };
    let is_lead = matches!(source, TokenSource::Lease | TokenSource::File(_));
    match source {
        _ if identity.as_ref().is_some_and(String::is_empty) => {
            Err("identity: it is empty".to_owned())
        }
        _ if is_lead && identity.is_some() => Err(
            "identity is for token = \"SCOPE=etcd:KEY\" or \"SCOPE=kubernetes:NAMESPACE/NAME\""
                .to_owned(),
        ),
        TokenSource::Kubernetes { .. } => Ok((scope, source)),
        _ if kubernetes.is_some() => {
            Err("kubernetes is for token = \"SCOPE=kubernetes:NAMESPACE/NAME\"".to_owned())
        }
        _ => Ok((scope, source)),
    }
}

/// The API of a Lease.
fn cluster(written: Option<&str>, environment: &Environment) -> Result<Cluster, String> {
    match written {
        Some(url) => url.parse().map_err(|error| format!("kubernetes: {error}")),
        None => Cluster::of_this_pod(|name| environment.get(name)).ok_or_else(|| {
            "kubernetes: this is not a pod, so write the API's address: \
             kubernetes = \"https://10.0.0.1:6443?ca=FILE&token_file=FILE\""
                .to_owned()
        }),
    }
}

/// In a pod its name.
fn host() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(addresses: &[&str], scope: &str, without: Without) -> TokenListener {
        let listen = addresses.iter().map(|text| listen::parse(text).unwrap());
        TokenListener {
            listen: listen.collect(),
            scope: Scope::new(scope).unwrap(),
            source: TokenSource::Lease,
            without,
            pool: None,
            on_loss: Vec::new(),
        }
    }

    fn parse(text: &str) -> Result<TokenListener, String> {
        super::parse(text, &Environment::from_pairs(std::iter::empty()))
    }

    /// What makes a listener, ` => `, and its scope with the source, or a part of the error.
    const SOURCES: &str = r#"
token = "a=lease", on_loss = ["kill", "1"] => a lease
token = "etcd:/b=c" => default etcd:/b=c
token = "a=etcd:/b=c", identity = "x" => a etcd:/b=c
token = "a=file:/run/n" => a file:/run/n
token = "a=kubernetes:n/l", kubernetes = "http://127.0.0.1:1" => a kubernetes:n/l
token = "a=advisory-lock:1" => write lease
token = "a=etcd:" => write lease
token = "a=file:" => names no file
token = "a=kubernetes:l" => write lease
token = "a=kubernetes:n/l" => this is not a pod
token = "a=lease", identity = "x" => identity is for
token = "a=etcd:k", identity = "" => identity: it is empty
token = "a=etcd:k", kubernetes = "http://x" => kubernetes is for"#;

    #[test]
    fn a_token_has_a_source() {
        let mut read = 0;
        for row in SOURCES.lines().skip(1) {
            let (written, expect) = row.split_once(" => ").unwrap();
            match parse(&format!(r#"{{ listen = "127.0.0.1:1", {written} }}"#)) {
                Ok(listener) => {
                    let found = format!("{} {}", listener.scope, listener.source);
                    assert_eq!(found, expect, "{written}");
                    read += 1;
                }
                Err(error) => assert!(error.contains(expect), "{written}: {error}"),
            }
        }
        assert_eq!(read, 5);
    }

    const FAULTS: &str = r#"
{ listen = "127.0.0.1:1" } => missing field `token`
{ token = "lease" } => missing field `listen`
{ listen = "127.0.0.1:1", token = "lease", wait = 1 } => unknown field `wait`
{ listen = "127.0.0.1:1", token = "a=34" } => write lease
{ listen = "127.0.0.1:1", token = "a=lease:3s" } => write lease
{ listen = "127.0.0.1:1", token = "=lease" } => name of a scope is empty
{ listen = "127.0.0.1:1", token = "lease", pool = "transaction" } => pool: write "session", or nothing
{ listen = "127.0.0.1:1", token = "lease", without = "x" } => without: "x": write read or refuse
{ listen = [], token = "lease" } => listen is empty
{ listen = 1, token = "lease" } => an address, or a list
{ listen = "x", token = "lease" } => not an address to listen on
127.0.0.1:1 => "#;

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
        for row in FAULTS.lines().skip(1) {
            let (text, part) = row.split_once(" => ").unwrap();
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
