//! The servers of the cluster: their addresses, and which of them is the primary.
//!
//! A name may stand for several servers, and for others tomorrow. So each attempt resolves the names again and tries
//! every address. Only the server itself says what it is.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::Cluster;
use pgpalisade_authority::owned::FIRST_STATEMENTS;
use pgpalisade_tls::{Login, words};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Client;
use tokio_postgres::config::{Host, SslMode};
use tokio_util::either::Either;

use super::control::answer;
use super::control_error::ControlError;
use super::error::StartError;
use super::prepare;

/// Time left for the others after one server has answered as a primary. If an older one answers first, the newer is
/// still found.
const AFTER_A_PRIMARY: Duration = Duration::from_millis(300);
/// Time left for the others after any answer. A server that hangs must not delay the next look at a standby that is
/// promoted meanwhile.
const AFTER_ANY: Duration = Duration::from_secs(1);
/// A dead peer is noticed within about 20 s, whatever the system's own times.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(3), 3);
const USER_TIMEOUT: Duration = Duration::from_secs(10);
/// Default of libpq.
const DEFAULT_PORT: u16 = 5432;

/// A server by its host and address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostAddress {
    /// Index of the configured host, from 0.
    pub host: usize,
    /// Address that its name stands for; `None` for a unix socket.
    pub address: Option<IpAddr>,
}

/// A place, and how to reach it.
#[derive(Debug, Clone)]
pub(super) struct HostCandidate {
    pub(super) place: HostAddress,
    /// Name that its certificate must have.
    name: String,
    target: DialAddress,
}

#[derive(Debug, Clone)]
enum DialAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl std::fmt::Display for HostCandidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.target {
            DialAddress::Unix(path) => write!(f, "{}", path.display()),
            DialAddress::Tcp(address) if self.name == address.ip().to_string() => {
                write!(f, "{address}")
            }
            DialAddress::Tcp(address) => write!(f, "{} ({address})", self.name),
        }
    }
}

/// A connection to a server, with the cluster in which it takes writes, if it does.
pub(super) struct Open {
    pub(super) at: HostCandidate,
    pub(super) link: HostConnection,
    pub(super) writes: Option<Cluster>,
}

/// A connection, which ends with its client.
pub(super) struct HostConnection {
    pub(super) client: Client,
    pub(super) connection: JoinHandle<()>,
    /// Version of its PostgreSQL, as the server reports it.
    pub(super) version: Arc<str>,
}

/// Every address of every host, and the reason for each name that cannot be resolved. A name that is slow holds up the
/// others no longer than `patience`.
pub(super) async fn candidates(
    login: &Login,
    mut deadline: Instant,
    patience: Duration,
) -> (Vec<HostCandidate>, Vec<String>) {
    let config = &login.config;
    let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
    let port = |host: usize| {
        let ports = config.get_ports();
        let port = ports.get(host).or(ports.first());
        port.copied().unwrap_or(DEFAULT_PORT)
    };
    let (mut found, mut unresolved) = (Vec::new(), BTreeMap::new());
    let mut lookups = JoinSet::new();
    let at = |host, name: &str, address: SocketAddr| HostCandidate {
        place: HostAddress {
            host,
            address: Some(address.ip()),
        },
        name: name.to_owned(),
        target: DialAddress::Tcp(address),
    };
    for host in 0..hosts.len().max(addresses.len()) {
        match (addresses.get(host), hosts.get(host)) {
            // The name is then used only for the certificate.
            (Some(address), Some(Host::Tcp(name))) => {
                found.push(at(host, name, SocketAddr::new(*address, port(host))));
            }
            (Some(address), _) => {
                found.push(at(
                    host,
                    &address.to_string(),
                    SocketAddr::new(*address, port(host)),
                ));
            }
            (None, Some(Host::Unix(directory))) => found.push(socket(host, directory, port(host))),
            (None, Some(Host::Tcp(name))) => {
                let (name, port) = (name.clone(), port(host));
                unresolved.insert(host, format!("{name}: its name is not resolved in time"));
                lookups.spawn(async move {
                    let resolved = lookup_host((name.as_str(), port)).await;
                    let resolved = resolved.map(Iterator::collect::<Vec<_>>);
                    (host, name, resolved)
                });
            }
            (None, None) => {}
        }
    }
    if !found.is_empty() {
        deadline = deadline.min(Instant::now() + patience);
    }
    while let Ok(Some(looked_up)) = timeout_at(deadline, lookups.join_next()).await {
        match looked_up {
            Ok((host, name, Ok(mut resolved))) => {
                resolved.dedup();
                found.extend(resolved.into_iter().map(|address| at(host, &name, address)));
                unresolved.remove(&host);
                deadline = deadline.min(Instant::now() + patience);
            }
            Ok((host, name, Err(error))) => {
                unresolved.insert(host, format!("{name}: {error}"));
            }
            Err(_) => {}
        }
    }
    found.sort_by_key(|at| at.place.host);
    (found, unresolved.into_values().collect())
}

fn socket(host: usize, directory: &Path, port: u16) -> HostCandidate {
    let path = directory.join(format!(".s.PGSQL.{port}"));
    HostCandidate {
        place: HostAddress {
            host,
            address: None,
        },
        name: path.display().to_string(),
        target: DialAddress::Unix(path),
    }
}

/// Logs in.
async fn connect(login: &Login, at: &HostCandidate) -> Result<HostConnection, ControlError> {
    let connector = login
        .connector()
        .map_err(|error| ControlError::Files(error.into()))?;
    let mut config = connector.config_for(&login.config);
    let stream = match &at.target {
        DialAddress::Unix(path) => {
            config.ssl_mode(SslMode::Disable);
            Either::Right(UnixStream::connect(path).await.map_err(dial_error)?)
        }
        DialAddress::Tcp(address) => Either::Left(dial(*address).await.map_err(dial_error)?),
    };
    let connecting = config.connect_raw(stream, connector.for_host(&at.name));
    let connected = boxed(connecting).await;
    // A refused login is FATAL too, but not a lost connection.
    let (client, connection) = connected.map_err(|error| ControlError::Server(error.into()))?;
    let version = connection.parameter("server_version").unwrap_or_default();
    let version = Arc::from(version);
    let connection = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::warn!(error = words(&error), "the control connection has failed");
        }
    });
    client.batch_execute(FIRST_STATEMENTS).await?;
    Ok(HostConnection {
        client,
        connection,
        version,
    })
}

async fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (idle, interval, retries) = KEEPALIVE;
    let keepalive = TcpKeepalive::new().with_time(idle);
    let keepalive = keepalive.with_interval(interval).with_retries(retries);
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(stream)
}

fn dial_error(error: io::Error) -> ControlError {
    ControlError::Dial(Arc::new(error))
}

/// Asks a server whether it takes writes, over an open connection or a new one.
pub(super) async fn visit(
    login: Login,
    at: HostCandidate,
    open: Option<HostConnection>,
) -> (HostCandidate, Result<Open, ControlError>) {
    let visiting = async {
        let link = match open {
            Some(link) => link,
            None => boxed(connect(&login, &at)).await?,
        };
        let writes = boxed(writes(&link.client)).await?;
        let at = at.clone();
        Ok(Open { at, link, writes })
    };
    let visited = visiting.await;
    (at, visited)
}

/// Otherwise the compiler does not see that another thread may continue the future.
fn boxed<'a, T>(
    step: impl Future<Output = T> + Send + 'a,
) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> {
    Box::pin(step)
}

async fn writes(client: &Client) -> Result<Option<Cluster>, ControlError> {
    let asked = client.query_typed_one("SELECT pg_catalog.pg_is_in_recovery()", &[]);
    if answer(&asked.await?, 0)? {
        return Ok(None);
    }
    prepare::cluster(client).await.map(Some)
}

/// Connections to the servers that take writes, the newest history first.
///
/// Errors: no server takes writes. If only one server is named, its own error.
pub(super) async fn primaries(login: &Login, deadline: Instant) -> Result<Vec<Open>, StartError> {
    let (candidates, mut why) = candidates(login, deadline, AFTER_ANY).await;
    let mut looks = JoinSet::new();
    let mut unheard: Vec<HostCandidate> = Vec::new();
    for at in candidates {
        unheard.push(at.clone());
        looks.spawn(visit(login.clone(), at, None));
    }
    let is_only_one = unheard.len() == 1 && why.is_empty();
    let mut deadline = deadline;
    let mut found = Vec::new();
    while let Ok(Some(looked)) = timeout_at(deadline, looks.join_next()).await {
        let Ok((at, seen)) = looked else { continue };
        unheard.retain(|one| one.place != at.place);
        let patience = match seen {
            Ok(Open { writes: None, .. }) if is_only_one => return Err(StartError::Standby),
            Err(error) if is_only_one => {
                let at = at.to_string();
                return Err(StartError::Connect { at, error });
            }
            Ok(open) if open.writes.is_some() => {
                found.push(open);
                AFTER_A_PRIMARY
            }
            Ok(_) => {
                why.push(format!("{at} is a standby"));
                AFTER_ANY
            }
            Err(error) => {
                why.push(format!("{at}: {error}"));
                AFTER_ANY
            }
        };
        deadline = deadline.min(Instant::now() + patience);
    }
    if let ([at], true, true) = (unheard.as_slice(), found.is_empty(), is_only_one) {
        let (at, error) = (at.to_string(), ControlError::Timeout);
        return Err(StartError::Connect { at, error });
    }
    if found.is_empty() {
        why.extend(unheard.iter().map(|at| format!("{at} does not answer")));
        return Err(StartError::NoPrimary {
            seen: why.join("; "),
        });
    }
    let age = |open: &Open| open.writes.map(|c| (c.timeline, c.postmaster_us));
    found.sort_by_key(|open| std::cmp::Reverse(age(open)));
    Ok(found)
}
