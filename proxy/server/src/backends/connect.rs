//! The connection to PostgreSQL: its address, and TLS as configured.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-SSL>

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use pgpalisade_fence::rejection::Rejection;
use pgpalisade_takeover::{Primary, PrimaryTerm};
use pgpalisade_tls::{Connector, SSL_REQUEST, SslMode, TlsError};
use tokio::net::{TcpStream, UnixStream};

use super::OpenError;
use crate::hosts::UpstreamAddr;
use crate::transport::{SendBatch, Socket};
use crate::worker::Worker;

const RETRY: Duration = Duration::from_millis(100);

/// A server's socket, and its term as the primary.
pub(crate) struct UpstreamConnection {
    pub(crate) socket: Socket,
    /// `None`: the control connection is down, and there is only one host.
    pub(crate) tenure: Option<PrimaryTerm>,
}

impl UpstreamConnection {
    /// Continues a login only while the server is the primary.
    pub(crate) async fn while_primary<T, E: From<OpenError>>(
        tenure: Option<&PrimaryTerm>,
        step: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let Some(tenure) = tenure else {
            return step.await;
        };
        tokio::select! {
            done = step => done,
            () = tenure.over() => {
                Err(OpenError::Deposed(Box::new(Rejection::ended_with_its_server())).into())
            }
        }
    }
}

/// Connects for a client. With several hosts it waits for a known primary, because a refused client would only retry.
pub(crate) async fn connect(worker: &Worker) -> Result<UpstreamConnection, OpenError> {
    let shared = &worker.shared;
    if shared.servers.upstream.only().is_some() {
        let primary = shared.takeover.primary();
        let socket = dial_host(worker, primary.as_ref()).await?;
        let tenure = primary.map(|primary| primary.term);
        return Ok(UpstreamConnection { socket, tenure });
    }
    // Ends before the client's own limit, to tell the client why.
    let limit = shared.limits.login_timeout;
    let within = limit.saturating_sub(limit / 10);
    let mut failed = None;
    let connecting = shared
        .timers
        .timeout(within, open_primary(worker, &mut failed));
    match connecting.await {
        Ok(Some(connected)) => Ok(connected),
        // A host that cannot be reached is the reason only if it still counts as the primary.
        Ok(None) | Err(_) => Err(failed
            .filter(|_| shared.takeover.primary().is_some())
            .unwrap_or_else(|| {
                let why = shared.takeover.why_no_primary();
                tracing::warn!(error = %why, "timed out waiting for a primary");
                OpenError::NoPrimary(why)
            })),
    }
}

/// Connects to the current primary, or to the only host.
pub(super) async fn connect_now(worker: &Worker) -> Result<Socket, OpenError> {
    let primary = worker.shared.takeover.primary();
    dial_host(worker, primary.as_ref()).await
}

/// Tries the current primary repeatedly; `None` if the proxy stops.
async fn open_primary(
    worker: &Worker,
    failed: &mut Option<OpenError>,
) -> Option<UpstreamConnection> {
    loop {
        let primary = worker.shared.takeover.find_primary().await?;
        let opening = dial_host(worker, Some(&primary));
        let tenure = primary.term.clone();
        *failed = match UpstreamConnection::while_primary(Some(&tenure), opening).await {
            Ok(socket) => {
                let tenure = Some(tenure);
                return Some(UpstreamConnection { socket, tenure });
            }
            Err(_) if tenure.is_over() => None,
            Err(error) => Some(error),
        };
        worker.shared.timers.sleep(RETRY).await;
    }
}

/// The primary's host, and the address to dial: the control connection's address if both use the same name, because a
/// name may stand for several servers. Without a known primary, the only host by its name.
fn destination<'a>(
    worker: &'a Worker,
    primary: Option<&Primary>,
) -> Option<(&'a UpstreamAddr, Cow<'a, UpstreamAddr>)> {
    let servers = &worker.shared.servers;
    let (upstream, control) = (servers.upstream.all(), servers.control.all());
    let place = primary.map(|primary| primary.place);
    let at = place.map_or(0, |place| place.host);
    let host = upstream.get(at)?;
    let address = place.and_then(|place| place.address);
    let dialed = match (host, address) {
        (UpstreamAddr::Tcp { port, .. }, Some(address)) if control.get(at) == Some(host) => {
            let host = address.to_string();
            Cow::Owned(UpstreamAddr::Tcp { host, port: *port })
        }
        _ => Cow::Borrowed(host),
    };
    Some((host, dialed))
}

async fn dial_host(worker: &Worker, primary: Option<&Primary>) -> Result<Socket, OpenError> {
    let shared = &worker.shared;
    let Some((host, dialed)) = destination(worker, primary) else {
        return Err(OpenError::NoPrimary(shared.takeover.why_no_primary()));
    };
    let upstream = host.to_string();
    let keepalive = shared.limits.tcp_keepalive;
    let dialed = dial(&dialed, keepalive, &worker.sends).await;
    let mut socket = dialed.map_err(|error| {
        tracing::warn!(upstream, %error, "cannot connect to PostgreSQL");
        OpenError::Unreachable(upstream.clone())
    })?;
    // A unix socket has no TLS, as in libpq.
    if let UpstreamAddr::Tcp { host, .. } = host {
        let loaded = shared.certificates.current();
        if loaded.upstream.mode() != SslMode::Disable {
            let encrypted = encrypt(&mut socket, &loaded.upstream, host).await;
            encrypted.map_err(|error| {
                tracing::warn!(upstream, error = %format_args!("TLS: {error}"), "cannot connect to PostgreSQL");
                OpenError::NoTls(upstream.clone())
            })?;
        }
    }
    Ok(socket)
}

/// Connects to PostgreSQL.
///
/// # Errors
///
/// The system's error for the last address tried.
async fn dial(
    addr: &UpstreamAddr,
    keepalive: Option<Duration>,
    sends: &Rc<SendBatch>,
) -> io::Result<Socket> {
    match addr {
        UpstreamAddr::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            Socket::tcp(stream, keepalive, sends)
        }
        UpstreamAddr::Unix(path) => Socket::unix(UnixStream::connect(path).await?, sends),
    }
}

/// Asks the server for TLS. It must answer with one byte and nothing more before the handshake (CVE-2021-23222).
async fn encrypt(socket: &mut Socket, connector: &Connector, host: &str) -> io::Result<()> {
    socket.write_all(&SSL_REQUEST).await?;
    let mut answer = BytesMut::new();
    socket.read_more(&mut answer).await?;
    match (&*answer, connector.mode()) {
        (b"S", _) => socket.begin_tls(connector.session(host)?, &[]).await,
        (b"N", SslMode::Prefer) => Ok(()),
        (b"N", _) => Err(TlsError::NotOffered.into()),
        ([b'S' | b'N', ..], _) => Err(TlsError::EarlyData.into()),
        _ => Err(TlsError::NoAnswer.into()),
    }
}
