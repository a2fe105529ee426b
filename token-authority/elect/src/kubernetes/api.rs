//! The API of Kubernetes for one Lease, with a new connection for each request, so any of its servers may answer.
//!
//! Source: <https://kubernetes.io/docs/reference/using-api/api-concepts/>.

use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use std::{fmt, io};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use pgpalisade_tls::{
    ALPN_HTTP, Connector, FileError, Holds, Origin, Root, SslMode, SslSettings, read_file,
    read_query,
};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::LeaseName;
use super::resource::Resource;

/// No answer about a Lease is longer.
const ANSWER_MAX: usize = 1024 * 1024;
/// Characters.
const WORDS_MAX: usize = 300;
/// Number of addresses that may be tried in the time of one request.
const TRIES: u32 = 5;
/// Shortest timeout of a connection attempt.
const LEAST_PATIENCE: Duration = Duration::from_millis(500);
/// Credentials of a pod:
/// <https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/#directly-accessing-the-rest-api>.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

#[derive(Debug, thiserror::Error)]
pub(super) enum KubernetesError {
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("cannot connect to {at}: {error}")]
    Connect { at: String, error: io::Error },
    #[error("no answer: {0}")]
    Http(#[from] hyper::Error),
    #[error(transparent)]
    Tls(#[from] FileError),
    #[error("the file {} holds no token", .0.display())]
    NoToken(PathBuf),
    #[error("no answer in time")]
    Silent,
    #[error("not a Kubernetes API server, or its answer is too long")]
    Garbled,
    #[error("another client changed the Lease")]
    Conflict,
    #[error("it refuses, with status {}{}: {words}", status.as_u16(), hint(*status))]
    Refused { status: StatusCode, words: String },
}

impl KubernetesError {
    /// Whether a retry is useless.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Refused { status, .. } => {
                status.is_client_error() && *status != StatusCode::TOO_MANY_REQUESTS
            }
            Self::Tls(_) | Self::NoToken(_) | Self::Garbled => true,
            Self::Io(_) | Self::Connect { .. } | Self::Http(_) | Self::Silent | Self::Conflict => {
                false
            }
        }
    }
}

/// Advice, if known.
fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => " (it does not know the token or certificate)",
        StatusCode::FORBIDDEN => {
            " (allow get on leases of coordination.k8s.io, and to a candidate create and update)"
        }
        _ => "",
    }
}

/// Address and credentials of the API: `https://host[:port][?ca=FILE&token_file=FILE&cert=FILE&key=FILE]`. In values
/// `%41` stands for `A`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    host: String,
    port: u16,
    tls: Option<SslSettings>,
    /// Read for each request, since Kubernetes rotates the token.
    token_file: Option<PathBuf>,
}

const WRITE: &str = "write https://10.0.0.1:6443?ca=FILE&token_file=FILE, or http://127.0.0.1:8001 for kubectl proxy";

impl FromStr for Cluster {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (url, query) = text.split_once('?').unwrap_or((text, ""));
        let origin =
            Origin::parse(url).ok_or_else(|| format!("it names no API server: {WRITE}"))?;
        let mut query = read_query(query, &["ca", "token_file", "cert", "key"])?;
        if !origin.is_https && !query.is_empty() {
            return Err("ca, token_file, cert and key are for https://".to_owned());
        }
        let mut file = |name| query.remove(name).map(PathBuf::from);
        let certificate = match (file("cert"), file("key")) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err("cert and key belong together: write both, or neither".to_owned()),
        };
        let default = if origin.is_https { 443 } else { 80 };
        Ok(Self {
            host: origin.host.trim_matches(['[', ']']).to_owned(),
            port: origin.port.unwrap_or(default),
            tls: origin.is_https.then(|| verified(file("ca"), certificate)),
            token_file: file("token_file"),
        })
    }
}

impl Cluster {
    /// The cluster whose pod this process runs in, by its environment.
    pub fn of_this_pod<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let host = variable("KUBERNETES_SERVICE_HOST")?;
        let port = variable("KUBERNETES_SERVICE_PORT")?;
        let file = |name: &str| Path::new(SERVICE_ACCOUNT).join(name);
        Some(Self {
            host: host.to_owned(),
            port: port.parse().ok()?,
            tls: Some(verified(Some(file("ca.crt")), None)),
            token_file: Some(file("token")),
        })
    }
}

impl fmt::Display for Cluster {
    /// As in a `Host` header.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<Ipv6Addr>() {
            Ok(host) => write!(f, "[{host}]:{}", self.port),
            Err(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

fn verified(ca: Option<PathBuf>, certificate: Option<(PathBuf, PathBuf)>) -> SslSettings {
    SslSettings {
        mode: SslMode::VerifyFull,
        root: Some(ca.map_or(Root::System, Root::File)),
        certificate,
    }
}

#[derive(Debug)]
pub(super) struct Api {
    cluster: Cluster,
    /// Path of all Leases of the namespace.
    collection: String,
    name: String,
    answers_within: Duration,
}

impl Api {
    pub(super) fn new(cluster: &Cluster, lease: &LeaseName, answers_within: Duration) -> Self {
        let LeaseName { namespace, name } = lease;
        Self {
            cluster: cluster.clone(),
            collection: format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"),
            name: name.clone(),
            answers_within: answers_within.max(LEAST_PATIENCE),
        }
    }

    /// The Lease; `None` if it does not exist.
    pub(super) async fn get(&self) -> Result<Option<Resource>, KubernetesError> {
        let path = format!("{}/{}", self.collection, self.name);
        match self.ask(Method::GET, path, None).await {
            Ok(lease) => {
                let lease = Resource::read(lease).ok_or(KubernetesError::Garbled)?;
                Ok(Some(lease))
            }
            Err(KubernetesError::Refused { status, .. }) if status == StatusCode::NOT_FOUND => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Creates the Lease, held by this candidate. `false` if one exists by now.
    pub(super) async fn create(
        &self,
        identity: &str,
        ttl: Duration,
    ) -> Result<bool, KubernetesError> {
        let lease = Resource::new(&self.name, identity, ttl);
        self.write(Method::POST, self.collection.clone(), lease)
            .await
    }

    /// Writes the Lease. `false` if it has changed since it was read.
    pub(super) async fn update(&self, lease: Resource) -> Result<bool, KubernetesError> {
        let path = format!("{}/{}", self.collection, self.name);
        self.write(Method::PUT, path, lease).await
    }

    async fn write(
        &self,
        method: Method,
        path: String,
        lease: Resource,
    ) -> Result<bool, KubernetesError> {
        match self.ask(method, path, Some(lease.into_value())).await {
            Ok(_) => Ok(true),
            Err(KubernetesError::Refused { status, .. }) if status == StatusCode::CONFLICT => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: String,
        body: Option<Value>,
    ) -> Result<Value, KubernetesError> {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.cluster.to_string())
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .header(CONNECTION, "close")
            .body(Full::new(Bytes::from(body)))
            .map_err(|_| KubernetesError::Garbled)?;
        if let Some(path) = &self.cluster.token_file {
            request.headers_mut().insert(AUTHORIZATION, token(path)?);
        }
        let answered = timeout(self.answers_within, self.send(request)).await;
        answered.map_err(|_| KubernetesError::Silent)?
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Value, KubernetesError> {
        let stream = self.connect().await?;
        stream.set_nodelay(true)?;
        match &self.cluster.tls {
            // Changed files count from the next request on.
            Some(tls) => {
                let connector = Connector::load(tls)?.with_protocol(ALPN_HTTP);
                let stream = connector
                    .encrypt_at_once(stream, &self.cluster.host)
                    .await?;
                converse(stream, request).await
            }
            None => converse(stream, request).await,
        }
    }

    /// Connects to the first address that answers. A silent address leaves time for the others and for a retry.
    async fn connect(&self) -> Result<TcpStream, KubernetesError> {
        let Cluster { host, port, .. } = &self.cluster;
        let within = (self.answers_within / TRIES).max(LEAST_PATIENCE);
        let mut last = KubernetesError::Silent;
        let failed = |at: String| move |error| KubernetesError::Connect { at, error };
        let addresses = lookup_host((host.as_str(), *port)).await;
        for address in addresses.map_err(failed(self.cluster.to_string()))? {
            match timeout(within, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = failed(address.to_string())(error),
                Err(_) => last = KubernetesError::Silent,
            }
        }
        Err(last)
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Value, KubernetesError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let _driven = AbortOnDropHandle::new(tokio::spawn(connection));
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
    let body = body.map_err(|_| KubernetesError::Garbled)?.to_bytes();
    let body = serde_json::from_slice::<Value>(&body);
    if status.is_success() {
        return body.map_err(|_| KubernetesError::Garbled);
    }
    let body = body.unwrap_or_default();
    let words = body.get("message").and_then(Value::as_str);
    Err(KubernetesError::Refused {
        status,
        words: words.map_or("no reason given".to_owned(), |words| {
            words.chars().take(WORDS_MAX).collect()
        }),
    })
}

/// The header that authenticates this process.
fn token(path: &Path) -> Result<HeaderValue, KubernetesError> {
    // A pod's own is readable to all.
    let bytes = read_file(path, Holds::Certificates)?;
    let no_token = || KubernetesError::NoToken(path.to_owned());
    let token = bytes.trim_ascii();
    if token.is_empty() {
        return Err(no_token());
    }
    let token = [b"Bearer ", token].concat();
    let mut token = HeaderValue::from_bytes(&token).map_err(|_| no_token())?;
    token.set_sensitive(true);
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_read_strictly() {
        let read = |text: &str| text.parse::<Cluster>();
        let outside = read("https://[::1]:6443/?ca=/a%20b&token_file=/t&cert=/c&key=/k").unwrap();
        let tls = outside.tls.as_ref().unwrap();
        assert_eq!(outside.to_string(), "[::1]:6443");
        assert_eq!(tls.mode, SslMode::VerifyFull);
        assert_eq!(tls.root, Some(Root::File("/a b".into())));
        assert_eq!(tls.certificate, Some(("/c".into(), "/k".into())));
        assert_eq!(outside.token_file, Some("/t".into()));
        assert_eq!(
            read("https://k").unwrap().tls.unwrap().root,
            Some(Root::System)
        );
        assert_eq!(read("https://k").unwrap().to_string(), "k:443");
        let proxied = read("http://127.0.0.1:8001").unwrap();
        assert_eq!((proxied.tls, proxied.token_file), (None, None));
        for text in [
            "",
            "k:6443",
            "https://",
            "https://k/api",
            "https://u:p@k",
            "https://k:x",
            "https://[k]",
            "https://k?ca=",
            "https://k?ca=/a&ca=/b",
            "https://k?token=x",
            "https://k?cert=/c",
            "http://k?token_file=/t",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
        for text in [
            "https://admin:hunter2@10.0.0.1:6443",
            "https://admin:x?hunter2@10.0.0.1:6443",
            "https://admin:hunter2?x=y@10.0.0.1:6443",
        ] {
            let error = read(text).unwrap_err();
            assert!(!error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn a_pod_is_told_where_it_is() {
        let pod = |variables: &[(&str, &'static str)]| {
            let all = variables.iter();
            let find = |name: &str| all.clone().find(|(known, _)| *known == name);
            Cluster::of_this_pod(|name| find(name).map(|(_, value)| *value))
        };
        let host = ("KUBERNETES_SERVICE_HOST", "fd00::1");
        let found = pod(&[host, ("KUBERNETES_SERVICE_PORT", "443")]).unwrap();
        assert_eq!(found.to_string(), "[fd00::1]:443");
        assert!(found.token_file.is_some() && found.tls.is_some());
        assert_eq!(pod(&[host]), None);
        assert_eq!(pod(&[]), None);
    }
}
