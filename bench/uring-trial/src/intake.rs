//! Accepts clients on one thread, connects each to the server, and hands the pair to the relay's threads in turn.
//! This is not what is measured, so it blocks and is plain.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

/// The sockets of one connection.
pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;
pub(crate) type Pair = [OwnedFd; 2];

/// What one read may bring, as in the proxy.
pub(crate) const READ_CHUNK: usize = 16 * 1024;

/// Where PostgreSQL is: `tcp:127.0.0.1:5432` or `unix:/path/.s.PGSQL.5432`.
#[derive(Debug, Clone)]
pub(crate) enum Upstream {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Upstream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("tcp", addr)) => addr
                .parse()
                .map(Self::Tcp)
                .map_err(|e| format!("{text}: {e}")),
            Some(("unix", path)) => Ok(Self::Unix(path.into())),
            _ => Err(format!("{text}: say tcp:HOST:PORT or unix:PATH")),
        }
    }
}

impl Upstream {
    fn dial(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Self::Tcp(addr) => {
                let stream = TcpStream::connect(addr)?;
                stream.set_nodelay(true)?;
                stream.into()
            }
            Self::Unix(path) => UnixStream::connect(path)?.into(),
        })
    }
}

/// Hands pairs to one thread of the relay, and wakes it.
pub(crate) struct Handoff {
    pairs: Sender<Pair>,
    bell: Arc<OwnedFd>,
}

impl Handoff {
    pub(crate) fn new() -> io::Result<(Self, Arrivals)> {
        let (pairs, arrived) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::empty())?);
        let arrivals = Arrivals {
            pairs: arrived,
            bell: Arc::clone(&bell),
        };
        Ok((Self { pairs, bell }, arrivals))
    }

    pub(crate) fn give(&self, pair: Pair) -> io::Result<()> {
        self.pairs
            .send(pair)
            .map_err(|_| io::Error::other("a thread of the relay is gone"))?;
        rustix::io::write(&*self.bell, &1_u64.to_ne_bytes())?;
        Ok(())
    }
}

/// The other end of a [`Handoff`].
pub(crate) struct Arrivals {
    pub(crate) pairs: Receiver<Pair>,
    /// Readable when a pair has come. Whoever reads it (8 bytes) must take all that are there.
    pub(crate) bell: Arc<OwnedFd>,
}

/// Runs for ever.
pub(crate) fn accept(
    listener: &TcpListener,
    upstream: &Upstream,
    nonblocking: Nonblocking,
    mut give: impl FnMut(Pair) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        let (client, _) = listener.accept()?;
        client.set_nodelay(true)?;
        let pair: Pair = [client.into(), upstream.dial()?];
        if matches!(nonblocking, Nonblocking::Yes) {
            for socket in &pair {
                rustix::io::ioctl_fionbio(socket, true)?;
            }
        }
        give(pair)?;
    }
}

/// io_uring waits for a blocking socket by itself, and gives an error for one that is not.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Nonblocking {
    Yes,
    No,
}
