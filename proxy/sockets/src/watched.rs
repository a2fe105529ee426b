//! A socket that wakes its task for one event only.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket that tokio watches for one event: bytes to read, or room to write. tokio's own sockets are watched for
/// both.
#[derive(Debug)]
pub struct Watched {
    socket: AsyncFd<OwnedFd>,
    interest: Interest,
}

impl Watched {
    /// Watches a socket for something to read.
    ///
    /// # Errors
    ///
    /// System errors.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime that does I/O.
    pub fn to_read(socket: OwnedFd) -> io::Result<Self> {
        Self::new(socket, Interest::READABLE)
    }

    /// Watches a socket for room. A clone of a descriptor may be watched beside its original.
    ///
    /// # Errors
    ///
    /// System errors.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime that does I/O.
    pub fn to_write(socket: OwnedFd) -> io::Result<Self> {
        Self::new(socket, Interest::WRITABLE)
    }

    fn new(socket: OwnedFd, interest: Interest) -> io::Result<Self> {
        // SAFETY: the descriptor is owned and thus open, for as long as the `AsyncFd` is. Nothing here gives the
        // `AsyncFd` or its content away for writing, so no code can put another descriptor in its place.
        let socket = unsafe { AsyncFd::register_with_interest(socket, interest)? };
        Ok(Self { socket, interest })
    }

    /// Runs `io` unless the socket is known to be unready. If `io` returns `WouldBlock`, the socket counts as
    /// unready.
    ///
    /// # Errors
    ///
    /// Errors of `io`; `WouldBlock` if it was not run.
    #[inline]
    pub fn try_io<R>(&self, io: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        self.socket.try_io(self.interest, |_| io())
    }

    /// Waits until the socket is not known to be unready.
    ///
    /// # Errors
    ///
    /// The runtime is ending.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _guard = ready!(match self.interest {
            Interest::WRITABLE => self.socket.poll_write_ready(cx),
            _ => self.socket.poll_read_ready(cx),
        })?;
        Poll::Ready(Ok(()))
    }
}

impl AsFd for Watched {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// `EPOLLIN` and `EPOLLOUT` (epoll_ctl(2)).
    const ARRIVALS: u32 = 1;
    const ROOM: u32 = 4;

    /// The events of these two for which the kernel watches a socket: `tfd` and `events` in `/proc/PID/fdinfo`
    /// (proc(5)). tokio holds its epoll instance by several descriptors, and each of them shows it.
    fn watched_for(socket: &Watched) -> Vec<u32> {
        let fd = socket.as_fd().as_raw_fd().to_string();
        let files = fs::read_dir("/proc/self/fdinfo").unwrap();
        let texts = files.filter_map(|file| fs::read_to_string(file.ok()?.path()).ok());
        let text: String = texts.collect();
        let events = text.lines().filter_map(|line| {
            let mut words = line.strip_prefix("tfd:")?.split_whitespace();
            (words.next()? == fd).then_some(words.nth(1)?)
        });
        let asked = events.map(|events| u32::from_str_radix(events, 16).unwrap());
        let mut asked: Vec<u32> = asked.map(|events| events & (ARRIVALS | ROOM)).collect();
        asked.dedup();
        asked
    }

    #[tokio::test]
    async fn a_socket_is_watched_for_one_thing() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let reads = Watched::to_read(ours.into()).unwrap();
        assert_eq!(watched_for(&reads), [ARRIVALS]);
        let writes = Watched::to_write(theirs.into()).unwrap();
        assert_eq!(watched_for(&writes), [ROOM]);
    }
}
