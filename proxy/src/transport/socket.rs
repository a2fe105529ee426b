//! A connected stream socket, by TCP or through the file system.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncWrite;
use tokio::net::{TcpStream, UnixStream};
use tokio_util::io::poll_read_buf;

use crate::config::UpstreamAddr;

/// A peer that answers nothing, not even TCP's own probes, is given up after about the configured
/// idle time and `5 * interval`.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 5;

/// A connected stream socket.
#[derive(Debug)]
pub enum Socket {
    /// Over the network.
    Tcp(TcpStream),
    /// Through the file system.
    Unix(UnixStream),
}

impl Socket {
    /// Takes a TCP stream and sets what a relay needs: no delay for small messages, and probes that
    /// notice a peer that is gone, where `keepalive` says after which idle time.
    ///
    /// # Errors
    ///
    /// The socket's own errors.
    pub fn tcp(stream: TcpStream, keepalive: Option<Duration>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        if let Some(idle) = keepalive {
            let keepalive = TcpKeepalive::new()
                .with_time(idle)
                .with_interval(KEEPALIVE_INTERVAL)
                .with_retries(KEEPALIVE_PROBES);
            SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        }
        Ok(Self::Tcp(stream))
    }

    /// Appends what has arrived to `buf`; 0 means that the peer has closed its side.
    ///
    /// # Errors
    ///
    /// The socket's own errors.
    #[inline]
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => poll_read_buf(Pin::new(stream), cx, buf),
            Self::Unix(stream) => poll_read_buf(Pin::new(stream), cx, buf),
        }
    }

    /// Writes a part of `bytes` as far as the socket takes it, and asks to be woken where it does not.
    ///
    /// # Errors
    ///
    /// The socket's own errors.
    #[inline]
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    /// Writes a part of `bytes` as far as the socket takes it now.
    ///
    /// # Errors
    ///
    /// The socket's own errors; `WouldBlock` where it takes nothing.
    #[inline]
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    /// Reads at least one byte more into `buf`. Cancel safe: either bytes are in `buf` or none were taken.
    ///
    /// # Errors
    ///
    /// The socket's own errors; `UnexpectedEof` where the peer has closed.
    pub async fn read_more(&mut self, buf: &mut BytesMut) -> io::Result<()> {
        match std::future::poll_fn(|cx| self.poll_read(cx, buf)).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Writes all of `bytes`. Not cancel safe: a part may have been sent.
    ///
    /// # Errors
    ///
    /// The socket's own errors.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = std::future::poll_fn(|cx| self.poll_write(cx, bytes)).await?;
            match bytes.get(sent..) {
                Some(rest) if sent > 0 => bytes = rest,
                _ => return Err(io::ErrorKind::WriteZero.into()),
            }
        }
        Ok(())
    }

    /// Tells the peer that nothing more follows.
    pub async fn shut_down_write(&mut self) {
        let result = std::future::poll_fn(|cx| match self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        });
        if let Err(error) = result.await {
            tracing::trace!(%error, "closing a socket");
        }
    }
}

/// Connects to PostgreSQL.
///
/// # Errors
///
/// What the system says of the last address tried.
pub async fn dial(addr: &UpstreamAddr, keepalive: Option<Duration>) -> io::Result<Socket> {
    match addr {
        UpstreamAddr::Tcp { host, port } => {
            Socket::tcp(TcpStream::connect((host.as_str(), *port)).await?, keepalive)
        }
        UpstreamAddr::Unix(path) => Ok(Socket::Unix(UnixStream::connect(path).await?)),
    }
}
