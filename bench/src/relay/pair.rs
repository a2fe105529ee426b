//! The two sockets of a session, and the bytes that wait between them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).read(buffer),
            Self::Unix(stream) => (&*stream).read(buffer),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).write(bytes),
            Self::Unix(stream) => (&*stream).write(bytes),
        }
    }

    fn say_that_no_more_comes(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

#[derive(Debug)]
struct Side {
    stream: Stream,
    /// What this side has not taken yet. Never more than one buffer: while there is any, the other side is not read.
    pending: Vec<u8>,
    /// It sends no more.
    finished: bool,
    /// What epoll watches it for.
    watched: EventFlags,
}

impl Side {
    fn new(stream: Stream) -> Self {
        Self {
            stream,
            pending: Vec::new(),
            finished: false,
            watched: EventFlags::empty(),
        }
    }

    /// How much it takes now.
    fn offer(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.stream.write(bytes) {
            Err(error) if is_for_now(&error) => Ok(0),
            other => other,
        }
    }

    /// Does not wake up for a side that nothing is wanted of: epoll would tell of its end again and again.
    fn watch(&mut self, epoll: &OwnedFd, data: u64, wanted: EventFlags) -> io::Result<()> {
        let data = EventData::new_u64(data);
        if wanted == self.watched {
            return Ok(());
        }
        if wanted.is_empty() {
            epoll::delete(epoll, &self.stream)?;
        } else if self.watched.is_empty() {
            epoll::add(epoll, &self.stream, data, wanted)?;
        } else {
            epoll::modify(epoll, &self.stream, data, wanted)?;
        }
        self.watched = wanted;
        Ok(())
    }
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A client and its server.
#[derive(Debug)]
pub(crate) struct Pair {
    client: Side,
    server: Side,
}

impl Pair {
    /// Of two sockets that do not block.
    pub(crate) fn new(client: Stream, server: Stream) -> Self {
        Self {
            client: Side::new(client),
            server: Side::new(server),
        }
    }

    /// Neither side sends anything more, and all that was sent has been taken.
    pub(crate) fn has_ended(&self) -> bool {
        let is_done = |from: &Side, to: &Side| from.finished && to.pending.is_empty();
        is_done(&self.client, &self.server) && is_done(&self.server, &self.client)
    }

    /// What epoll tells of one end.
    ///
    /// # Errors
    /// Where a socket has failed. The session is over then.
    pub(crate) fn take(
        &mut self,
        end: End,
        flags: EventFlags,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        let (this, other) = match end {
            End::Client => (&mut self.client, &mut self.server),
            End::Server => (&mut self.server, &mut self.client),
        };
        if flags.contains(EventFlags::OUT) {
            send_pending(this, other)?;
        }
        // An end, or an error, is found by reading.
        let has_news = EventFlags::IN | EventFlags::HUP | EventFlags::ERR;
        if flags.intersects(has_news) && !this.finished && other.pending.is_empty() {
            carry(this, other, buffer)?;
        }
        Ok(())
    }

    /// Has epoll watch for what each side can do next, as session `number`.
    ///
    /// # Errors
    /// Where epoll fails.
    pub(crate) fn watch(&mut self, epoll: &OwnedFd, number: u64) -> io::Result<()> {
        let wanted = |this: &Side, other: &Side| {
            let mut flags = EventFlags::empty();
            flags.set(EventFlags::IN, !this.finished && other.pending.is_empty());
            flags.set(EventFlags::OUT, !this.pending.is_empty());
            flags
        };
        let client = wanted(&self.client, &self.server);
        let server = wanted(&self.server, &self.client);
        self.client.watch(epoll, number << 1, client)?;
        self.server.watch(epoll, number << 1 | 1, server)
    }
}

/// One read, one write. It is called again where there is more.
fn carry(from: &mut Side, to: &mut Side, buffer: &mut [u8]) -> io::Result<()> {
    let count = match from.stream.read(buffer) {
        Err(error) if is_for_now(&error) => return Ok(()),
        other => other?,
    };
    if count == 0 {
        from.finished = true;
        return to.stream.say_that_no_more_comes();
    }
    let bytes = buffer.get(..count).unwrap_or_default();
    let taken = to.offer(bytes)?;
    to.pending
        .extend_from_slice(bytes.get(taken..).unwrap_or_default());
    Ok(())
}

fn send_pending(to: &mut Side, from: &Side) -> io::Result<()> {
    let taken = to.offer(&to.pending)?;
    to.pending.drain(..taken);
    if to.pending.is_empty() && from.finished {
        to.stream.say_that_no_more_comes()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    struct Ends {
        client: UnixStream,
        server: UnixStream,
        pair: Pair,
        buffer: Vec<u8>,
    }

    fn ends() -> Ends {
        let (client, here) = UnixStream::pair().unwrap();
        let (server, there) = UnixStream::pair().unwrap();
        for stream in [&here, &there] {
            stream.set_nonblocking(true).unwrap();
        }
        Ends {
            client,
            server,
            pair: Pair::new(Stream::Unix(here), Stream::Unix(there)),
            buffer: vec![0; 1024],
        }
    }

    impl Ends {
        fn take(&mut self, end: End, flags: EventFlags) {
            self.pair.take(end, flags, &mut self.buffer).unwrap();
        }
    }

    fn read(mut stream: &UnixStream, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn bytes_go_both_ways() {
        let mut ends = ends();
        (&ends.client).write_all(b"question").unwrap();
        ends.take(End::Client, EventFlags::IN);
        assert_eq!(read(&ends.server, 8), b"question");
        (&ends.server).write_all(b"answer").unwrap();
        ends.take(End::Server, EventFlags::IN);
        assert_eq!(read(&ends.client, 6), b"answer");
        assert!(!ends.pair.has_ended());
    }

    /// A side that does not read holds up the other, with one buffer between them, and nothing is lost.
    #[test]
    fn at_most_one_buffer_waits() {
        let mut ends = ends();
        ends.client.set_nonblocking(true).unwrap();
        let pattern: Vec<u8> = (0..=250).collect();
        let mut sent = Vec::new();
        // Until the socket to the server is full, and after that the client's own.
        while let Ok(count) = (&ends.client).write(&pattern) {
            sent.extend_from_slice(&pattern[..count]);
            for _ in 0..3 {
                ends.take(End::Client, EventFlags::IN);
            }
            assert!(ends.pair.server.pending.len() <= ends.buffer.len());
        }
        assert!(!ends.pair.server.pending.is_empty());
        let mut arrived = Vec::new();
        while arrived.len() < sent.len() {
            let mut part = vec![0; 512];
            let count = (&ends.server).read(&mut part).unwrap();
            arrived.extend_from_slice(&part[..count]);
            ends.take(End::Server, EventFlags::OUT);
            ends.take(End::Client, EventFlags::IN);
        }
        assert!(arrived == sent, "{} bytes are not the same", sent.len());
    }

    #[test]
    fn an_end_is_passed_on_after_what_was_sent_before() {
        let mut ends = ends();
        (&ends.client).write_all(b"last words").unwrap();
        ends.client.shutdown(Shutdown::Write).unwrap();
        ends.take(End::Client, EventFlags::IN);
        ends.take(End::Client, EventFlags::IN);
        let mut rest = Vec::new();
        (&ends.server).read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"last words");
        assert!(!ends.pair.has_ended(), "the server may still answer");
        drop(ends.server);
        ends.pair
            .take(End::Server, EventFlags::HUP, &mut ends.buffer)
            .unwrap();
        assert!(ends.pair.has_ended());
    }
}
