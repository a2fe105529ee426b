//! The relay on tokio's current_thread runtime: one task polls both directions of a connection, as in the proxy.

use std::cell::RefCell;
use std::io;
use std::net::TcpStream as StdTcp;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnix;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use rustix::net::AddressFamily;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::LocalSet;

use crate::intake::{Arrivals, Pair, READ_CHUNK};

type Scratch = Rc<RefCell<Vec<u8>>>;

pub(crate) fn run(arrivals: Arrivals) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let scratch: Scratch = Rc::new(RefCell::new(vec![0; READ_CHUNK]));
    LocalSet::new().block_on(&runtime, async {
        rustix::io::ioctl_fionbio(&*arrivals.bell, true)?;
        // SAFETY: the descriptor lives as long as the value that owns it.
        let bell = unsafe { AsyncFd::register(arrivals.bell)? };
        loop {
            let mut ready = bell.readable().await?;
            // An error means that nothing has come, and then there is nothing to take.
            let _ = ready.try_io(|bell| Ok(rustix::io::read(bell.get_ref(), &mut [0; 8])?));
            for pair in arrivals.pairs.try_iter() {
                let [client, server] = adopt(pair)?;
                let scratch = Rc::clone(&scratch);
                tokio::task::spawn_local(async move {
                    let mut to_server = Direction::default();
                    let mut to_client = Direction::default();
                    let (mut client, mut server) = (client, server);
                    // A relay that looks at nothing has nothing to say of a connection that fails.
                    let _ = std::future::poll_fn(|cx| {
                        let back = to_client.poll(&mut server, &mut client, &scratch, cx)?;
                        let forth = to_server.poll(&mut client, &mut server, &scratch, cx)?;
                        match (back, forth) {
                            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(io::Result::Ok(())),
                            _ => Poll::Pending,
                        }
                    })
                    .await;
                });
            }
        }
    })
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

fn adopt(pair: Pair) -> io::Result<[Socket; 2]> {
    let [client, server] = pair;
    Ok([Socket::new(client)?, Socket::new(server)?])
}

impl Socket {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(match rustix::net::getsockname(&fd)?.address_family() {
            AddressFamily::UNIX => Self::Unix(UnixStream::from_std(StdUnix::from(fd))?),
            _ => Self::Tcp(TcpStream::from_std(StdTcp::from(fd))?),
        })
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[derive(Default)]
struct Direction {
    unsent: Vec<u8>,
    ended: bool,
}

impl Direction {
    fn poll(
        &mut self,
        from: &mut Socket,
        to: &mut Socket,
        scratch: &Scratch,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            while !self.unsent.is_empty() {
                let sent = ready!(to.poll_write(cx, &self.unsent))?;
                self.unsent.drain(..sent);
            }
            if self.ended {
                return to.poll_shutdown(cx);
            }
            let mut scratch = scratch.borrow_mut();
            let mut buf = ReadBuf::new(&mut scratch);
            ready!(from.poll_read(cx, &mut buf))?;
            let bytes = buf.filled();
            self.ended = bytes.is_empty();
            let sent = match to.poll_write(cx, bytes) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => 0,
            };
            self.unsent.extend_from_slice(&bytes[sent..]);
        }
    }
}
