//! The two kinds of stream sockets, and their plain calls, none of which waits.

use std::cell::RefCell;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use pgpalisade_sockets::Watched;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{self, RecvFlags, SendFlags};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(Unix),
}

/// A unix socket. It reports room whenever its peer has read something, full or not before (`unix_write_space` in
/// Linux), which would wake a worker a second time for each message. So it is watched for room only while a write
/// waits.
#[derive(Debug)]
pub(super) struct Unix {
    stream: Watched,
    /// The same socket, while a write waits.
    room: RefCell<Option<Watched>>,
}

impl Stream {
    pub(super) fn unix(stream: UnixStream) -> io::Result<Self> {
        Ok(Self::Unix(Unix {
            stream: Watched::to_read(OwnedFd::from(stream.into_std()?))?,
            room: RefCell::new(None),
        }))
    }

    /// Runs `read` unless the socket is known to be empty. After `WouldBlock` it counts as empty.
    #[inline]
    pub(super) fn try_read<R>(&self, read: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        match self {
            Self::Tcp(stream) => stream.try_io(Interest::READABLE, read),
            Self::Unix(unix) => unix.stream.try_io(read),
        }
    }

    #[inline]
    pub(super) fn is_drained(&self) -> bool {
        self.try_read(|| Ok(())).is_err()
    }

    /// Whether the peer has closed its sending direction; bytes may remain to be read.
    /// <https://www.man7.org/linux/man-pages/man2/poll.2.html>
    pub(super) fn is_closed_by_peer(&self) -> bool {
        let asked = PollFlags::RDHUP;
        let mut polled = [PollFd::new(self, asked)];
        let ended = asked | PollFlags::HUP | PollFlags::ERR;
        rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok()
            && polled.iter().any(|fd| fd.revents().intersects(ended))
    }

    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(unix) => unix.stream.poll_ready(cx),
        }
    }

    /// Sends a part of `bytes`, unless the socket is known to be full.
    pub(super) fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_io(Interest::WRITABLE, || self.send(bytes)),
            Self::Unix(unix) => unix.try_send(|| self.send(bytes)),
        }
    }

    /// Waits for room, after a send that found none.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(unix) => unix.poll_room(cx),
        }
    }

    #[inline]
    pub(super) fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(net::recv(self.as_fd(), buf, RecvFlags::empty())?.0)
    }

    #[inline]
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(net::send(self.as_fd(), bytes, SendFlags::NOSIGNAL)?)
    }

    pub(super) fn shut_down_write(&self) -> io::Result<()> {
        SockRef::from(&self.as_fd()).shutdown(Shutdown::Write)
    }
}

impl Unix {
    fn try_send(&self, send: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        let mut room = self.room.borrow_mut();
        let sent = match &*room {
            Some(room) => room.try_io(send),
            None => send(),
        }?;
        *room = None;
        Ok(sent)
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut room = self.room.borrow_mut();
        match &*room {
            Some(room) => room.poll_ready(cx),
            // Reports at once if there is already room.
            None => {
                let socket = self.stream.as_fd().try_clone_to_owned()?;
                room.insert(Watched::to_write(socket)?).poll_ready(cx)
            }
        }
    }
}

impl AsFd for Stream {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(unix) => unix.stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Otherwise it wakes the worker for each message that its peer reads.
    #[tokio::test]
    async fn a_unix_socket_is_watched_for_room_only_while_a_write_waits() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let stream = Stream::unix(UnixStream::from_std(ours).unwrap()).unwrap();
        let Stream::Unix(unix) = &stream else {
            unreachable!();
        };
        let mut sent = 0;
        while let Ok(part) = stream.try_send(&[0; 1024]) {
            sent += part;
        }
        assert!(unix.room.borrow().is_none());
        let waits = std::future::poll_fn(|cx| Poll::Ready(stream.poll_room(cx).is_pending()));
        assert!(waits.await);
        assert!(unix.room.borrow().is_some());
        theirs.read_exact(&mut vec![0; sent]).unwrap();
        std::future::poll_fn(|cx| stream.poll_room(cx))
            .await
            .unwrap();
        assert_eq!(stream.try_send(b"x").unwrap(), 1);
        assert!(unix.room.borrow().is_none());
    }
}
