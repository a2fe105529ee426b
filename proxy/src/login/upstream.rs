//! The connection to PostgreSQL: the address, and TLS as far as it is asked for.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-SSL>

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use pgpalisade_tls::{Connector, SSL_REQUEST, SslMode, TlsError};

use super::LoginError;
use crate::config::UpstreamAddr;
use crate::transport::{Socket, dial};
use crate::worker::Worker;

/// How long a cancel request may take. The client waits for nothing but the end of the connection.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    /// The system's own.
    #[error(transparent)]
    Dial(io::Error),
    /// There is no TLS with the server, or it is not to be trusted.
    #[error("TLS: {0}")]
    Tls(io::Error),
}

/// Connects for a client.
pub(super) async fn connect(worker: &Worker) -> Result<Socket, LoginError> {
    open(worker).await.map_err(|error| {
        let upstream = worker.upstream.to_string();
        tracing::warn!(upstream, %error, "connecting to PostgreSQL");
        match error {
            ConnectError::Dial(_) => LoginError::Unreachable(upstream),
            ConnectError::Tls(_) => LoginError::NoTlsToServer(upstream),
        }
    })
}

async fn open(worker: &Worker) -> Result<Socket, ConnectError> {
    let dialed = dial(&worker.upstream, worker.tcp_keepalive, &worker.sends).await;
    let mut socket = dialed.map_err(ConnectError::Dial)?;
    // On a unix socket there is no TLS, as for libpq.
    if let UpstreamAddr::Tcp { host, .. } = &worker.upstream {
        let loaded = worker.certificates.current();
        if loaded.upstream.mode() != SslMode::Disable {
            let encrypted = encrypt(&mut socket, &loaded.upstream, host).await;
            encrypted.map_err(ConnectError::Tls)?;
        }
    }
    Ok(socket)
}

/// Has the server encrypt the connection. It has to answer with one byte, and say nothing more before the handshake
/// (CVE-2021-23222).
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

/// Passes a cancel request on, as it is: the client has the server's own key. There is no answer.
pub(super) async fn forward_cancel(worker: &Worker, packet: &[u8]) {
    let forward = async {
        let mut server = open(worker).await?;
        server.write_all(packet).await.map_err(ConnectError::Dial)?;
        let mut rest = BytesMut::new();
        // The server closes once the request was carried out.
        match server.read_more(&mut rest).await {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                Err(ConnectError::Dial(error))
            }
            _ => Ok(()),
        }
    };
    match worker.timers.timeout(CANCEL_TIMEOUT, forward).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "forwarding a cancel request"),
        Err(_) => tracing::warn!("forwarding a cancel request took too long"),
    }
}
