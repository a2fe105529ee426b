//! TLS under tokio-postgres.

use std::convert::Infallible;
use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_postgres::config::{Host, SslMode as LibraryMode};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Client, Connection, Socket};
use tokio_rustls::TlsConnector;

use crate::SSL_REQUEST;
use crate::connect::Connector;
use crate::files::FileError;
use crate::sslmode::{SslMode, SslSettings};
use crate::state::TlsError;

#[derive(Debug)]
pub struct Stream<S>(tokio_rustls::client::TlsStream<S>);

#[derive(Debug)]
pub enum Negotiated<S> {
    /// Unencrypted, as allowed.
    Plain(S),
    Encrypted(Box<Stream<S>>),
}

#[derive(Debug)]
pub struct ForHost {
    connector: Connector,
    host: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Files(#[from] FileError),
    /// No source: Display includes it, and the error alone often says only "db error".
    #[error("{}", words(.0))]
    Server(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for ConnectError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(error)
    }
}

/// The server's message with its hint, or the reason why it cannot be reached.
#[must_use]
pub fn words(error: &tokio_postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        let hint = said.hint().map(|hint| format!(" ({hint})"));
        return format!("{}{}", said.message(), hint.unwrap_or_default());
    }
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    pub config: tokio_postgres::Config,
    /// From the connection string; without them no TLS is used.
    pub ssl: Option<SslSettings>,
}

impl From<tokio_postgres::Config> for Login {
    fn from(config: tokio_postgres::Config) -> Self {
        Self { config, ssl: None }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address would be harmless, but a password is not.
        f.debug_struct("Login")
            .field("ssl", &self.ssl)
            .finish_non_exhaustive()
    }
}

impl Login {
    /// Connects like tokio-postgres, with the configured TLS. Reads the files each time.
    pub async fn connect(
        &self,
    ) -> Result<(Client, Connection<Socket, Stream<Socket>>), ConnectError> {
        let connector = self.connector()?;
        let config = connector.config_for(&self.config);
        Ok(config.connect(connector).await?)
    }

    pub fn connector(&self) -> Result<Connector, FileError> {
        Connector::load(self.ssl.as_ref().unwrap_or(&SslSettings::default()))
    }
}

impl<S> Stream<S> {
    #[must_use]
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        let (_, session) = self.0.get_ref();
        session.peer_certificates()?.first().map(AsRef::as_ref)
    }
}

impl Connector {
    /// tokio-postgres's settings with the configured TLS. Verification is not theirs. As in libpq, unix sockets have
    /// no TLS.
    #[must_use]
    pub fn config_for(&self, config: &tokio_postgres::Config) -> tokio_postgres::Config {
        let mut config = config.clone();
        let hosts = config.get_hosts();
        let is_local = !hosts.is_empty() && hosts.iter().all(|host| matches!(host, Host::Unix(_)));
        if hosts.is_empty() {
            // tokio-postgres needs a name for each host, verified or not.
            for address in config.get_hostaddrs().to_vec() {
                config.host(address.to_string());
            }
        }
        config.ssl_mode(match self.mode() {
            _ if is_local => LibraryMode::Disable,
            SslMode::Disable => LibraryMode::Disable,
            SslMode::Prefer => LibraryMode::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => LibraryMode::Require,
        });
        config
    }

    /// Asks the server to encrypt a new connection, as far as configured.
    ///
    /// # Errors
    ///
    /// The server has no TLS although it is required, or is not trusted, or the stream failed.
    pub async fn encrypt<S>(&self, mut stream: S, host: &str) -> io::Result<Negotiated<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if self.mode() == SslMode::Disable {
            return Ok(Negotiated::Plain(stream));
        }
        stream.write_all(&SSL_REQUEST).await?;
        match (stream.read_u8().await?, self.mode()) {
            (b'S', _) => {
                let encrypted = self.for_host(host).connect(stream).await?;
                Ok(Negotiated::Encrypted(Box::new(encrypted)))
            }
            (b'N', SslMode::Prefer) => Ok(Negotiated::Plain(stream)),
            (b'N', _) => Err(TlsError::NotOffered.into()),
            _ => Err(TlsError::NoAnswer.into()),
        }
    }

    /// Encrypts a connection to a server that expects TLS at once, such as HTTPS.
    pub async fn encrypt_at_once<S>(&self, stream: S, host: &str) -> io::Result<Stream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.for_host(host).connect(stream).await
    }

    #[must_use]
    pub fn for_host(&self, host: &str) -> ForHost {
        ForHost {
            connector: self.clone(),
            host: host.to_owned(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Connector {
    type Stream = Stream<S>;
    type TlsConnect = ForHost;
    type Error = Infallible;

    fn make_tls_connect(&mut self, host: &str) -> Result<ForHost, Infallible> {
        Ok(self.for_host(host))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for ForHost {
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let Self { connector, host } = self;
            let config = connector.config()?;
            let name = ServerName::try_from(host.clone()).map_err(|_| TlsError::Name(host))?;
            let connected = TlsConnector::from(config).connect(name, stream).await;
            connected.map(Stream)
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    /// None, like libpq with `channel_binding=disable`.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
