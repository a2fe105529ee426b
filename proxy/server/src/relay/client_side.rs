//! A client: its socket, and the state of its bytes.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::task::coop;

use super::{End, behind};
use crate::client_table::Publisher;
use crate::collected::Collecting;
use crate::end_watch::EndWatch;
use crate::pause;
use crate::rejection_log::SessionLabel;
use crate::takeover::Lease;
use crate::transport::{Socket, Stall};
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
    /// Runs while the client takes nothing of what waits for it.
    pub(super) stall: Stall,
    /// Bytes that are not decided yet.
    pub(super) kept: BytesMut,
    /// Bytes still to arrive of a message that is dropped.
    pub(super) discard: usize,
    /// Memory for the message at the front until it is complete.
    pub(super) collecting: Collecting,
    /// Wakes the task when the gate turns, and for a look whether the client has left.
    pub(super) look: Option<Pin<Box<dyn Future<Output = ()>>>>,
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
        !self.stall.is_running() && self.socket.is_flushed()
    }

    /// Whether a message is here that is to be decided: a whole one, or the beginning of a long one.
    pub(super) fn has_message(&self) -> bool {
        let front = header::parse(&self.kept, frontend::body_max);
        front.map_or(true, |front| {
            let whole = front.map(Header::frame_len);
            whole.is_some_and(|len| len.min(WHOLE_MAX) <= self.kept.len())
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
        if !self.socket.has_room() {
            return Poll::Pending;
        }
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

    /// Waits until the client leaves, also while what it has sent waits. It is not looked at after a goodbye.
    pub(super) fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        while !self.kept.ends_with(GOODBYE) {
            if self.kept.len() >= WAITING_MAX {
                return self.poll_closed(cx).map(|()| End::ClientLeft);
            }
            if let Err(end) = ready!(self.poll_more(cx)) {
                return Poll::Ready(end);
            }
        }
        Poll::Pending
    }

    /// Looks now and then whether the client has closed its connection, without reading.
    pub(super) fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_closed = self.look_later(cx).is_ready() && self.socket.is_closed_by_peer();
        if is_closed {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Wakes the task when the gate turns, and for a look whether the client has left. The server's replies wake it,
    /// too.
    #[cold]
    pub(super) fn look_later(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let worker = &self.worker;
        let look = self.look.get_or_insert_with(|| {
            let (worker, timers) = (Rc::clone(worker), worker.shared.timers.clone());
            Box::pin(async move {
                let _ = timers.timeout(pause::LOOK_EVERY, worker.gate.turns()).await;
            })
        });
        ready!(look.as_mut().poll(cx));
        self.look = None;
        cx.waker().wake_by_ref();
        Poll::Ready(())
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
        if self.socket.is_done() {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        let limit = &self.worker.write_stall_limit;
        Ok(self.stall.poll_flush(&mut self.socket, limit, cx)?)
    }

    /// Sends the proxy's own messages, after the relayed ones.
    pub(super) fn put_own(&mut self, messages: &[u8]) {
        self.socket.put(messages);
    }

    /// Drops the message at the front, which was answered.
    pub(super) fn discard_front(&mut self) {
        self.collecting.done();
        if let Ok(Some(header)) = header::parse(&self.kept, frontend::body_max) {
            self.discard = header.frame_len();
        }
    }
}

pub(super) fn client_end(closed: io::Result<usize>) -> End {
    closed.map_or_else(End::ClientSocket, |_| End::ClientLeft)
}
