//! Reading the client: the session decides each message, and admitted ones go on to the server.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::task::coop;

use super::{End, Relay, Side, behind, keep};
use crate::client_table::Publisher;
use crate::collected::Collecting;
use crate::end_watch::EndWatch;
use crate::pause;
use crate::rejection_log::SessionLabel;
use crate::session::action::{Action, Prerequisite};
use crate::session::frame::Frame;
use crate::takeover::Lease;
use crate::transport::{Outbox, Socket, Stall};
use crate::wire::WireError;
use crate::wire::frontend::{self, FrontendTag};
use crate::wire::header::{self, Header};
use crate::worker::Worker;

/// Messages up to this size, with their header, are here before a client is lent a server connection for them.
const WHOLE_MAX: usize = 16 * 1024;

/// Bytes that are read of a client that waits for a server connection.
const WAITING_MAX: usize = 64 * 1024;

/// Terminate, with its header.
const GOODBYE: &[u8] = b"X\0\0\0\x04";

/// A client: who it is, its socket, and the state of its bytes.
pub(crate) struct ClientSide {
    pub(crate) worker: Rc<Worker>,
    pub(crate) label: Arc<SessionLabel>,
    /// Publishes the session's state.
    pub(super) shown: Publisher,
    /// Leases of the tokens that the session holds or is about to hold.
    pub(super) leases: Vec<Lease>,
    pub(super) ends: EndWatch,
    pub(super) socket: Socket,
    pub(super) outbox: Outbox,
    /// Runs while the client takes nothing of what waits for it.
    pub(super) stall: Stall,
    /// Bytes that are not decided yet.
    kept: BytesMut,
    /// Bytes still to arrive of a message that is dropped.
    pub(super) discard: usize,
    /// Memory for the message at the front until it is complete.
    collecting: Collecting,
    /// Wakes the task when the gate turns, and for a look whether the client has left.
    look: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// Number of processed bytes, and what the next message needs.
struct Done {
    bytes: usize,
    need: Option<Prerequisite>,
}

impl ClientSide {
    /// A client that has logged in, and the bytes that it has sent since.
    pub(crate) fn new(
        worker: &Rc<Worker>,
        label: Arc<SessionLabel>,
        shown: Publisher,
        socket: Socket,
        kept: BytesMut,
    ) -> Self {
        let (drain, end) = (worker.drain.clone(), Arc::clone(&shown.entry().end));
        Self {
            worker: Rc::clone(worker),
            label,
            shown,
            leases: Vec::new(),
            // Wakes the client's task when the proxy stops, or an operator or a lost lease ends it.
            ends: EndWatch::new(async move {
                tokio::join!(drain.cancelled(), end.ordered());
            }),
            socket,
            outbox: Outbox::default(),
            stall: Stall::default(),
            kept,
            discard: 0,
            collecting: Collecting::default(),
            look: None,
        }
    }

    /// Whether nothing waits to be sent, and no stall timer runs.
    #[inline]
    pub(super) fn is_flushed(&self) -> bool {
        !self.stall.is_running() && self.outbox.is_flushed(&self.socket)
    }

    /// Whether a message is here that is to be decided: a whole one, or the beginning of a long one.
    pub(super) fn has_message(&self) -> bool {
        let front = header::parse(&self.kept, frontend::body_max);
        front.map_or(true, |front| {
            let whole = front.map(Header::frame_len);
            whole.is_some_and(|len| len <= self.kept.len() || len > WHOLE_MAX)
        })
    }

    /// Bytes that are not decided yet.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.kept
    }

    pub(super) fn bytes_mut(&mut self) -> (&mut [u8], &Worker) {
        (&mut self.kept, &self.worker)
    }

    /// Type of the message at the front, if that can be a message.
    pub(super) fn front(&self) -> Result<FrontendTag, WireError> {
        header::parse(&self.kept, frontend::body_max)?;
        FrontendTag::from_byte(self.kept.first().copied().unwrap_or_default())
    }

    /// Waits until a message is here, while what waits for the client is sent.
    pub(super) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        self.poll_flush(cx)?;
        loop {
            let dropped = self.discard.min(self.kept.len());
            self.discard -= dropped;
            self.kept = behind(std::mem::take(&mut self.kept), dropped);
            if self.has_message() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_more(cx))?;
        }
    }

    /// Waits until the client leaves, also while what it has sent waits. It is not looked at after a goodbye, nor if
    /// it has sent much.
    pub(super) fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        while self.kept.len() < WAITING_MAX && !self.kept.ends_with(GOODBYE) {
            if let Err(end) = ready!(self.poll_more(cx)) {
                return Poll::Ready(end);
            }
        }
        Poll::Pending
    }

    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        // A client that sends without end leaves others their turn.
        let turn = ready!(coop::poll_proceed(cx));
        let mut scratch = self.worker.scratch.borrow_mut();
        match ready!(self.socket.poll_read(cx, scratch.room())) {
            Ok(read @ 1..) => {
                turn.made_progress();
                self.worker.tally.received_from_client(read);
                self.kept.extend_from_slice(scratch.front(read));
                Poll::Ready(Ok(()))
            }
            closed => Poll::Ready(Err(client_end(closed))),
        }
    }

    /// Waits until everything was sent.
    pub(super) fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        self.poll_flush(cx)?;
        if self.outbox.is_done(&self.socket) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        let limit = &self.worker.write_stall_limit;
        let (outbox, stall) = (&mut self.outbox, &mut self.stall);
        Ok(stall.poll_flush(outbox, &self.socket, limit, cx)?)
    }

    /// Sends the proxy's own messages, after the relayed ones.
    pub(super) fn put_own(&mut self, messages: &[u8]) {
        self.outbox.put(&self.socket, messages);
    }

    /// Drops the message at the front, which was answered.
    pub(super) fn discard_front(&mut self) {
        if let Ok(Some(header)) = header::parse(&self.kept, frontend::body_max) {
            self.discard = header.frame_len();
        }
    }
}

impl Relay {
    /// Reads the client. The inner error is what a message needs first.
    #[inline]
    pub(super) fn poll_client(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Result<Result<Side, Prerequisite>, End> {
        // A full ledger gets room without help: the server sends replies whenever its buffer of 8 KiB is full, and
        // the ledger holds many times as many.
        if !self.server.upstream.has_room() || !self.session.has_room() {
            return Ok(Ok(Side::Unasked));
        }
        if self.client.worker.gate.is_shut() && self.session.is_idle() {
            return self.await_gate(cx).map(Ok);
        }
        if self.client.socket.is_awaited(cx) {
            self.await_client(cx).map(Ok)
        } else if self.is_to_part() {
            self.look_later(cx);
            Ok(Ok(Side::Unasked))
        } else {
            self.read_client(cx)
        }
    }

    /// Whether the client, which may send ahead without end, is to give its server connection back first.
    #[inline]
    fn is_to_part(&self) -> bool {
        let backends = self.client.worker.backends.as_ref();
        self.lent.is_some()
            && backends.is_some_and(|backends| backends.are_wanted_back.get())
            && self.session.may_part_soon()
            && self.server.upstream.rest() == 0
            && !self.client.socket.is_closed_by_peer()
    }

    /// Wakes the task when the gate turns, and for a look whether the client has left. The server's replies wake it,
    /// too.
    #[cold]
    fn look_later(&mut self, cx: &mut Context<'_>) {
        let worker = &self.client.worker;
        let look = self.client.look.get_or_insert_with(|| {
            let (worker, timers) = (Rc::clone(worker), worker.shared.timers.clone());
            Box::pin(async move {
                let _ = timers.timeout(pause::LOOK_EVERY, worker.gate.turns()).await;
            })
        });
        if look.as_mut().poll(cx).is_ready() {
            self.client.look = None;
            cx.waker().wake_by_ref();
        }
    }

    /// Holds the client up. If it leaves meanwhile, nothing of what it has sent begins.
    #[cold]
    fn await_gate(&mut self, cx: &mut Context<'_>) -> Result<Side, End> {
        if self.client.socket.is_closed_by_peer() {
            return Err(End::ClientLeft);
        }
        self.client.collecting.restart();
        self.look_later(cx);
        Ok(Side::Drained)
    }

    #[inline]
    fn await_client(&mut self, cx: &mut Context<'_>) -> Result<Side, End> {
        if self.client.collecting.is_late(cx) {
            Err(self.end_late_message())
        } else {
            Ok(Side::Drained)
        }
    }

    fn read_client(&mut self, cx: &mut Context<'_>) -> Result<Result<Side, Prerequisite>, End> {
        let worker = Rc::clone(&self.client.worker);
        let mut scratch = worker.scratch.borrow_mut();
        let read = match self.client.socket.poll_read(cx, scratch.room()) {
            Poll::Pending => return self.await_client(cx).map(Ok),
            Poll::Ready(Ok(read @ 1..)) => read,
            Poll::Ready(closed) => return Err(client_end(closed)),
        };
        worker.tally.received_from_client(read);
        let came = worker.clock.read();
        let bytes = scratch.front(read);
        let need = if self.client.kept.is_empty() {
            let done = self.on_client_bytes(bytes)?;
            keep(&mut self.client.kept, bytes, done.bytes);
            done.need
        } else {
            self.client.kept.extend_from_slice(bytes);
            self.on_kept_client_bytes()?
        };
        worker.clock.decided(came);
        Ok(need.map_or(Ok(Side::Read), Err))
    }

    /// Processes the kept bytes, and returns what the message at their front needs.
    pub(super) fn on_kept_client_bytes(&mut self) -> Result<Option<Prerequisite>, End> {
        let kept = std::mem::take(&mut self.client.kept);
        let done = self.on_client_bytes(&kept)?;
        self.client.kept = behind(kept, done.bytes);
        Ok(done.need)
    }

    fn on_client_bytes(&mut self, bytes: &[u8]) -> Result<Done, End> {
        self.follow_policy();
        // Bytes before `at` are decided; bytes before `sent` have been passed on or dropped.
        let mut sent = self.discard(bytes);
        // The rest of a message that was decided comes first.
        let mut at = bytes.len().min(sent + self.server.upstream.rest());
        let mut need = None;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let header = match header::parse(rest, frontend::body_max) {
                Ok(None) => break,
                Ok(Some(header)) => header,
                Err(error) => {
                    self.pass_on(bytes, &mut sent, at)?;
                    let ending = self.session.end_for_violation(error);
                    return Err(self.ended(ending));
                }
            };
            let action = self.decide(header, rest);
            if !self.session.output().is_empty() {
                // Bytes decided before go out first.
                self.pass_on(bytes, &mut sent, at)?;
                self.put_output();
            }
            match action {
                Action::Forward(permit) => {
                    self.client.collecting.done();
                    let tally = &self.client.worker.tally;
                    tally.forwarded(header.tag, permit.basis());
                    self.server.upstream.admit(permit);
                    at += header.frame_len().min(rest.len());
                }
                Action::Discard => {
                    self.client.collecting.done();
                    self.pass_on(bytes, &mut sent, at)?;
                    self.client.discard = header.frame_len();
                    at += self.discard(rest);
                    sent = at;
                }
                Action::AwaitFront | Action::AwaitWhole => break,
                Action::Need(prerequisite) => {
                    need = Some(prerequisite);
                    break;
                }
                Action::Terminate => {
                    self.pass_on(bytes, &mut sent, at)?;
                    return Err(End::Goodbye);
                }
                Action::End(ending) => {
                    self.pass_on(bytes, &mut sent, at)?;
                    return Err(self.ended(ending));
                }
            }
        }
        self.pass_on(bytes, &mut sent, at)?;
        Ok(Done { bytes: sent, need })
    }

    /// Drops the part of a refused message that is here, and returns its length.
    #[inline]
    fn discard(&mut self, bytes: &[u8]) -> usize {
        let dropped = self.client.discard.min(bytes.len());
        self.client.discard -= dropped;
        dropped
    }

    /// Has the session decide the message at the front of `bytes`. If it must arrive whole, it is waited for if there
    /// is memory for it.
    #[inline]
    fn decide(&mut self, header: Header, bytes: &[u8]) -> Action {
        let mut frame = Frame::new(header, bytes);
        loop {
            let action = self
                .session
                .on_frontend(frame, &self.client.worker.verdicts);
            if !matches!(action, Action::AwaitWhole) {
                return action;
            }
            let (budget, timers) = (
                &self.client.worker.collected,
                &self.client.worker.shared.timers,
            );
            let collecting = &mut self.client.collecting;
            if collecting.may_wait(header.body_len, budget, timers) {
                return action;
            }
            frame = frame.without_room();
        }
    }

    fn pass_on(&mut self, bytes: &[u8], sent: &mut usize, at: usize) -> Result<(), End> {
        let ready = bytes.get(*sent..at).unwrap_or_default();
        *sent = at;
        if ready.is_empty() {
            return Ok(());
        }
        // A failed write does not end the session yet: the server may have said why, and that is read first.
        if let Err(error) = self.server.upstream.forward(ready) {
            tracing::debug!(%error, "writing to the server");
            if error.kind() == io::ErrorKind::PermissionDenied {
                return Err(End::ServerSocket(error));
            }
        }
        Ok(())
    }

    /// Ends a session whose client stopped in the middle of a message that must arrive whole.
    #[cold]
    fn end_late_message(&mut self) -> End {
        tracing::info!(client_addr = %self.client.label.client_addr, "a message did not arrive whole in time");
        self.client.kept = BytesMut::new();
        self.client.collecting.done();
        self.session.say_fatal(
            "54000",
            "terminating connection because a message did not arrive whole in time",
            "A query is read when all of it has arrived, and takes memory until then.",
            "",
        );
        self.put_output();
        End::LateMessage
    }
}

fn client_end(closed: io::Result<usize>) -> End {
    closed.map_or_else(End::ClientSocket, |_| End::ClientLeft)
}
