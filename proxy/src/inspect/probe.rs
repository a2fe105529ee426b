//! A connection that only reads.

use std::cell::Cell;
use std::error::Error;
use std::io;
use std::time::Duration;

use pgpalisade_authority::owned::FIRST_STATEMENTS;
use pgpalisade_server::hosts::UpstreamAddr;
use pgpalisade_takeover::ControlError;
use pgpalisade_tls::{Connector, FileError, Login, Negotiated};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, duplex};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, NoTls};

const APPLICATION_NAME: &str = "pgpalisade inspect";
/// Bytes of a CancelRequest.
const CANCEL_REQUEST: usize = 16;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    #[error("cannot connect to {0}: {1}")]
    Dial(UpstreamAddr, io::Error),
    #[error("{0} does not answer within {1:?}")]
    Timeout(UpstreamAddr, Duration),
    #[error("TLS to {0} failed: {1}")]
    Tls(UpstreamAddr, Box<dyn Error + Send + Sync>),
    #[error("the login at {0} failed: {1}")]
    Login(UpstreamAddr, ControlError),
}

pub(crate) struct Probe {
    client: Client,
    driver: AbortHandle,
    /// The pid that the server sent at login. If a pooler made it up, no takeover could end the session.
    pub(super) told_pid: Option<i32>,
    within: Duration,
    /// A query went unanswered, so no further one is sent.
    stuck: Cell<bool>,
}

impl Probe {
    pub(super) async fn open(
        addr: &UpstreamAddr,
        login: &Login,
        within: Duration,
    ) -> Result<Self, ProbeError> {
        let opening = async {
            let files = |error: FileError| ProbeError::Tls(addr.clone(), error.into());
            let connector = login.connector().map_err(files)?;
            let Opened { stream, .. } = open(addr, &connector).await?;
            let mut config = login.config.clone();
            // TLS is already in place.
            config.ssl_mode(SslMode::Disable);
            config.application_name(APPLICATION_NAME);
            let (client, connection) = config
                .connect_raw(stream, NoTls)
                .await
                .map_err(|error| ProbeError::Login(addr.clone(), login_error(error)))?;
            let driver = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection that looks");
                }
            });
            Ok(Self {
                told_pid: told_pid(&client).await,
                client,
                driver: driver.abort_handle(),
                within,
                stuck: Cell::new(false),
            })
        };
        timeout(within, opening)
            .await
            .unwrap_or_else(|_| Err(ProbeError::Timeout(addr.clone(), within)))
    }

    /// Runs a query in its own READ ONLY transaction.
    pub(crate) async fn look<T>(
        &self,
        ask: impl AsyncFnOnce(&Client) -> Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        if self.stuck.get() {
            return Err(ControlError::Lost);
        }
        let begin = format!(
            "BEGIN READ ONLY; {FIRST_STATEMENTS}; SET LOCAL statement_timeout = {}",
            self.within.as_millis()
        );
        let looking = async {
            self.client.batch_execute(&begin).await?;
            let answer = ask(&self.client).await;
            self.client.batch_execute("ROLLBACK").await?;
            answer
        };
        timeout(self.within, looking).await.unwrap_or_else(|_| {
            self.stuck.set(true);
            Err(ControlError::Timeout)
        })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.stuck.get() {
            self.driver.abort();
        }
    }
}

/// The client library names the pid in a cancel request only: after the length and a code, and before the key
/// (<https://www.postgresql.org/docs/current/protocol-message-formats.html>).
async fn told_pid(client: &Client) -> Option<i32> {
    let (stream, mut written) = duplex(CANCEL_REQUEST);
    let cancel = client.cancel_token();
    cancel.cancel_query_raw(stream, NoTls).await.ok()?;
    let mut request = [0; CANCEL_REQUEST];
    written.read_exact(&mut request).await.ok()?;
    let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = request;
    // 0: the server has sent none.
    Some(i32::from_be_bytes([a, b, c, d])).filter(|pid| *pid != 0)
}

/// A refused login is a FATAL error, which elsewhere means a lost session.
fn login_error(error: tokio_postgres::Error) -> ControlError {
    ControlError::Server(error.into())
}

pub(super) struct Opened {
    pub(super) stream: Box<dyn Duplex>,
    /// The server's, with TLS.
    pub(super) certificate: Option<Vec<u8>>,
}

pub(super) async fn open(addr: &UpstreamAddr, connector: &Connector) -> Result<Opened, ProbeError> {
    let stream = dial(addr).await?;
    let plain = |stream| Opened {
        stream,
        certificate: None,
    };
    let UpstreamAddr::Tcp { host, .. } = addr else {
        return Ok(plain(stream));
    };
    match connector.encrypt(stream, host).await {
        Ok(Negotiated::Plain(stream)) => Ok(plain(stream)),
        Ok(Negotiated::Encrypted(stream)) => Ok(Opened {
            certificate: stream.peer_certificate().map(<[u8]>::to_vec),
            stream,
        }),
        Err(error) => Err(ProbeError::Tls(addr.clone(), error.into())),
    }
}

async fn dial(addr: &UpstreamAddr) -> Result<Box<dyn Duplex>, ProbeError> {
    let failed = |error| ProbeError::Dial(addr.clone(), error);
    Ok(match addr {
        UpstreamAddr::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await;
            Box::new(stream.map_err(failed)?)
        }
        UpstreamAddr::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(failed)?),
    })
}
