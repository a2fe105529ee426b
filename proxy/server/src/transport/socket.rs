//! A connected stream socket, TCP or unix.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::BytesMut;
use pgpalisade_tls::TlsState;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::coop;

use super::outbox::Outbox;
use super::send_batch::{PART_MAX, SendBatch};
use super::shared_stream::{SendState, SharedStream};
use super::stream::Stream;

/// A peer that does not answer TCP probes is given up after about the configured idle time and `5 * interval`.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 5;

const LOGIN_CHUNK: usize = 4 * 1024;

/// Limit of consecutive reads that bring encrypted bytes and no text: parts of records, or TLS's own messages.
const READS_WITHOUT_TEXT: usize = 4;

/// A connected stream socket.
///
/// Reads and writes call the system directly, and tokio only waits: its own reads cost as much as the whole relay of
/// a message (docs/decisions/0009).
#[derive(Debug)]
pub(crate) struct Socket {
    pub(super) shared: Rc<SharedStream>,
    pub(super) sends: Rc<SendBatch>,
    pub(super) outbox: Outbox,
    wakeup: Wakeup,
    /// Boxed, so that an unencrypted socket stays small.
    pub(super) tls: Option<Box<TlsState>>,
}

/// Checks whether the peer has closed, while another task owns the socket.
pub(crate) struct Lookout(Rc<SharedStream>);

impl Lookout {
    /// As far as is known without reading.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        self.0.stream.is_closed_by_peer()
    }
}

#[derive(Debug, Default)]
struct Wakeup {
    task: Option<Waker>,
    /// The task has not been woken yet.
    is_due: bool,
}

enum Received {
    /// There may be more.
    Some(usize),
    /// There was nothing more.
    All(usize),
}

impl Wakeup {
    #[inline]
    fn is_due_to(&self, task: &Waker) -> bool {
        self.is_due && self.task.as_ref().is_some_and(|due| due.will_wake(task))
    }

    fn expect(&mut self, task: &Waker) {
        match &mut self.task {
            Some(due) => due.clone_from(task),
            none => *none = Some(task.clone()),
        }
        self.is_due = true;
    }
}

impl Socket {
    /// Takes a TCP stream: no delay for small messages, and probes after the idle time `keepalive`.
    pub(crate) fn tcp(
        stream: TcpStream,
        keepalive: Option<Duration>,
        sends: &Rc<SendBatch>,
    ) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        if let Some(idle) = keepalive {
            let keepalive = TcpKeepalive::new()
                .with_time(idle)
                .with_interval(KEEPALIVE_INTERVAL)
                .with_retries(KEEPALIVE_PROBES);
            SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        }
        Ok(Self::new(Stream::Tcp(stream), sends))
    }

    pub(crate) fn unix(stream: UnixStream, sends: &Rc<SendBatch>) -> io::Result<Self> {
        Ok(Self::new(Stream::unix(stream)?, sends))
    }

    fn new(stream: Stream, sends: &Rc<SendBatch>) -> Self {
        Self {
            shared: Rc::new(SharedStream::new(stream)),
            sends: Rc::clone(sends),
            outbox: Outbox::default(),
            wakeup: Wakeup::default(),
            tls: None,
        }
    }

    /// Encrypts all further sends, and decrypts all further reads.
    pub(super) fn encrypt_with(&mut self, session: TlsState) {
        self.tls = Some(Box::new(session));
    }

    /// Whether TLS has messages of its own to send.
    #[inline]
    pub(super) fn has_answer_of_tls(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_output())
    }

    #[must_use]
    pub(crate) const fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    #[must_use]
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.shared.stream, Stream::Unix(_))
    }

    /// Whether both sides have agreed on PostgreSQL's protocol (ALPN).
    #[must_use]
    pub(crate) fn has_agreed_protocol(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| tls.has_agreed_protocol())
    }

    #[must_use]
    pub(crate) fn peer_certificate(&self) -> Option<Vec<u8>> {
        let session = self.tls.as_ref()?;
        session.peer_certificate().map(<[u8]>::to_vec)
    }

    #[must_use]
    pub(crate) fn peer_common_name(&self) -> Option<String> {
        self.tls.as_ref()?.peer_common_name()
    }

    /// Reads into `buf`; returns the number of bytes, 0 if the peer has closed its side. If nothing has arrived, the
    /// task is woken later.
    #[inline]
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self.tls {
            None => self.poll_recv(cx, buf),
            Some(_) => self.poll_decrypted(cx, buf),
        }
    }

    /// Reads and decrypts in place.
    fn poll_decrypted(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        for _ in 0..READS_WITHOUT_TEXT {
            if let Some(read) = self.tls.as_mut().and_then(|tls| tls.read(buf)) {
                return Poll::Ready(Ok(read));
            }
            let received = ready!(self.poll_recv(cx, buf))?;
            let text = match &mut self.tls {
                Some(tls) if received > 0 => tls.decrypt(buf, received)?,
                // A close without TLS's announcement is accepted, as by PostgreSQL: messages have lengths.
                _ => return Poll::Ready(Ok(received)),
            };
            if text > 0 {
                return Poll::Ready(Ok(text));
            }
            // The outbox sends the answer in the next turn.
            if self.has_answer_of_tls() {
                break;
            }
        }
        // A peer that sends only empty records must let others have their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether nothing has arrived since the task asked, so that it will be woken. Much cheaper than
    /// [`Self::poll_read`], which must be called after `false`.
    #[inline(always)]
    pub(crate) fn is_awaited(&self, cx: &Context<'_>) -> bool {
        // TLS may hold more text.
        self.tls.is_none() && self.wakeup.is_due_to(cx.waker()) && self.shared.stream.is_drained()
    }

    /// Whether all that has arrived was read.
    pub(crate) fn is_drained(&self) -> bool {
        self.shared.stream.is_drained()
    }

    /// Whether the peer has closed, as far as is known without reading.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        self.shared.stream.is_closed_by_peer()
    }

    pub(crate) fn lookout(&self) -> Lookout {
        Lookout(Rc::clone(&self.shared))
    }

    /// Reads raw bytes, like [`Self::poll_read`].
    fn poll_recv(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.try_read(buf) {
                Ok(Received::All(read)) => {
                    // The next read returns a socket error.
                    let _ = self.poll_arrival(cx);
                    return Poll::Ready(Ok(read));
                }
                Ok(Received::Some(read)) => return Poll::Ready(Ok(read)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            if self.wakeup.is_due_to(cx.waker()) {
                return Poll::Pending;
            }
            ready!(self.poll_arrival(cx))?;
        }
    }

    /// Registers the task for the next arrival, if nothing has arrived.
    fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let arrival = self.shared.stream.poll_read_ready(cx);
        // A task without budget is told to wait, but not registered at the socket.
        if arrival.is_pending() && coop::has_budget_remaining() {
            self.wakeup.expect(cx.waker());
        }
        arrival
    }

    #[inline]
    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<Received> {
        let Self { shared, wakeup, .. } = self;
        let stream = &shared.stream;
        let mut part = 0;
        let read = stream.try_read(|| {
            // A ready socket has already woken its task.
            wakeup.is_due = false;
            let room = buf.len();
            match stream.recv(buf)? {
                // After a short read nothing more is there; more is another event. Saves the call that finds nothing.
                read if (1..room).contains(&read) => {
                    part = read;
                    Err(io::ErrorKind::WouldBlock.into())
                }
                read => Ok(Received::Some(read)),
            }
        });
        match part {
            0 => read,
            part => Ok(Received::All(part)),
        }
    }

    /// Writes as much of `bytes`, encrypted if necessary, as the socket takes; otherwise registers the task.
    pub(super) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
            ready!(self.shared.stream.poll_room(cx))?;
        }
    }

    /// Writes as much of `bytes` as the socket takes now. Nothing may be queued before them.
    ///
    /// # Errors
    ///
    /// Socket errors; `WouldBlock` if the socket takes nothing.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        debug_assert_eq!(self.shared.status(), SendState::Sent);
        self.shared.stream.try_send(bytes)
    }

    /// Queues a few bytes in the batch. Returns whether it did: not if they are too many, or others must go first.
    #[inline]
    pub(super) fn send_later(&self, bytes: &[u8]) -> bool {
        bytes.len() <= PART_MAX && self.sends.push(&self.shared, bytes)
    }

    /// Sets the task to wake when queued bytes return. Called by the socket's task before it sends.
    pub(crate) fn belongs_to(&self, cx: &Context<'_>) {
        self.shared.belongs_to(cx);
    }

    /// Reads at least one more byte into `buf`. Cancel safe.
    ///
    /// # Errors
    ///
    /// Socket errors; `UnexpectedEof` if the peer has closed.
    pub(crate) async fn read_more(&mut self, buf: &mut BytesMut) -> io::Result<()> {
        let read = std::future::poll_fn(|cx| {
            let mut chunk = [0; LOGIN_CHUNK];
            let read = ready!(self.poll_read(cx, &mut chunk))?;
            buf.extend_from_slice(chunk.get(..read).unwrap_or_default());
            Poll::Ready(io::Result::Ok(read))
        });
        match read.await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            return self.send_all(bytes).await;
        };
        let mut encrypted = BytesMut::new();
        tls.encrypt(bytes, &mut encrypted)?;
        self.send_all(&encrypted).await
    }

    /// Like [`Self::write_all`], for bytes encrypted if necessary.
    pub(super) async fn send_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = std::future::poll_fn(|cx| self.poll_write(cx, bytes)).await?;
            match bytes.get(sent..) {
                Some(rest) if sent > 0 => bytes = rest,
                _ => return Err(io::ErrorKind::WriteZero.into()),
            }
        }
        Ok(())
    }

    /// Closes the sending direction after all that was sent.
    pub(crate) fn shut_down_write(&mut self) {
        let settled = self.settle();
        if settled.is_ok() {
            self.say_closed();
        }
        if let Err(error) = settled.and_then(|()| self.shared.stream.shut_down_write()) {
            tracing::trace!(%error, "closing a socket");
        }
    }

    /// Sends TLS's close message, if the socket has room.
    fn say_closed(&mut self) {
        let Some(tls) = self.tls.as_mut().filter(|_| self.outbox.is_empty()) else {
            return;
        };
        let mut out = BytesMut::new();
        let closed = tls.close(&mut out).map_err(io::Error::from);
        if let Err(error) = closed.and_then(|()| self.try_write(&out)) {
            tracing::trace!(%error, "saying the end of TLS");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::task::Poll;

    use super::*;
    use crate::transport::Batching;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn pair() -> (Socket, std::os::unix::net::UnixStream) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let sends = Rc::new(SendBatch::new(Batching::Off));
        (
            Socket::unix(UnixStream::from_std(ours).unwrap(), &sends).unwrap(),
            theirs,
        )
    }

    async fn read(socket: &mut Socket) -> Vec<u8> {
        let mut buf = [0; 4];
        let read = std::future::poll_fn(|cx| socket.poll_read(cx, &mut buf));
        let read = tokio::time::timeout(PATIENCE, read).await;
        let read = read.expect("the task was not woken").unwrap();
        buf[..read].to_vec()
    }

    async fn look(socket: &mut Socket) -> Poll<io::Result<usize>> {
        let mut buf = [0; 4];
        std::future::poll_fn(|cx| Poll::Ready(socket.poll_read(cx, &mut buf))).await
    }

    fn local(test: impl Future<Output = ()> + 'static) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build_local(Default::default());
        runtime.unwrap().block_on(test);
    }

    fn send_later(mut theirs: std::os::unix::net::UnixStream, bytes: &'static [u8]) {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            theirs.write_all(bytes).unwrap();
        });
    }

    #[test]
    fn what_arrives_is_read_in_order_and_then_the_end() {
        local(async {
            let (mut socket, mut theirs) = pair();
            theirs.write_all(b"abcdefg").unwrap();
            assert_eq!(read(&mut socket).await, b"abcd");
            assert_eq!(read(&mut socket).await, b"efg");
            theirs.write_all(b"h").unwrap();
            assert_eq!(read(&mut socket).await, b"h");
            theirs.write_all(b"ijkl").unwrap();
            drop(theirs);
            assert_eq!(read(&mut socket).await, b"ijkl");
            assert_eq!(read(&mut socket).await, b"");
        });
    }

    /// After two looks before anything comes, the task is woken once, and again for what comes next.
    #[test]
    fn a_task_that_waits_is_woken_each_time() {
        local(async {
            let (mut socket, mut theirs) = pair();
            for _ in 0..3 {
                assert!(look(&mut socket).await.is_pending());
                assert!(look(&mut socket).await.is_pending());
                send_later(theirs.try_clone().unwrap(), b"x");
                assert_eq!(read(&mut socket).await, b"x");
            }
            theirs.write_all(b"y").unwrap();
            assert_eq!(read(&mut socket).await, b"y");
        });
    }

    async fn is_awaited(socket: &Socket) -> bool {
        std::future::poll_fn(|cx| Poll::Ready(socket.is_awaited(cx))).await
    }

    #[test]
    fn it_is_known_for_whom_the_next_bytes_are_a_wake_up() {
        local(async {
            let (mut socket, mut theirs) = pair();
            assert!(!is_awaited(&socket).await);
            assert!(look(&mut socket).await.is_pending());
            assert!(is_awaited(&socket).await);
            theirs.write_all(b"abcdef").unwrap();
            // More may follow a full buffer, and nothing a partly filled one.
            assert_eq!(read(&mut socket).await, b"abcd");
            assert!(!is_awaited(&socket).await);
            assert_eq!(read(&mut socket).await, b"ef");
            assert!(is_awaited(&socket).await);
            send_later(theirs.try_clone().unwrap(), b"x");
            assert_eq!(read(&mut socket).await, b"x");
            let other = tokio::task::spawn_local(async move {
                assert!(!is_awaited(&socket).await);
                read(&mut socket).await
            });
            send_later(theirs, b"y");
            assert_eq!(other.await.unwrap(), b"y");
        });
    }

    #[test]
    fn the_task_that_asked_last_is_woken() {
        local(async {
            let (mut socket, theirs) = pair();
            assert!(look(&mut socket).await.is_pending());
            // A login hands its sockets to the session's task.
            let other = tokio::task::spawn_local(async move { read(&mut socket).await });
            send_later(theirs, b"x");
            assert_eq!(other.await.unwrap(), b"x");
        });
    }

    /// tokio tells a task without budget to wait, and wakes it at once, unregistered.
    #[test]
    fn a_task_without_time_is_woken_later_all_the_same() {
        local(async {
            let (mut socket, theirs) = pair();
            std::future::poll_fn(|cx| {
                while coop::has_budget_remaining() {
                    assert!(std::pin::pin!(coop::consume_budget()).poll(cx).is_ready());
                }
                assert!(socket.poll_read(cx, &mut [0; 4]).is_pending());
                Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await;
            send_later(theirs, b"x");
            assert_eq!(read(&mut socket).await, b"x");
        });
    }
}
