//! The control flow of one connection: one task drives both sockets on one thread.
//!
//! Every turn of the loop does what can be done now, in this order: finish what the connection waits
//! for, send what waits, read the server, read the client. Nothing here blocks, so a client that does
//! not read or does not send holds up nobody else. What a message means is decided in
//! [`requests`] (from the client) and [`replies`] (from the server).

mod backstop;
mod contradiction;
mod copy;
mod declaration;
mod extended;
mod judgement;
mod progress;
mod refusal;
mod replies;
mod requests;
mod state;
mod steps;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use pgpalisade_authority::Mark;
use pgpalisade_policies::Verdict;

use crate::collected::Collecting;
use crate::fence::{Guard, Holding, SessionFence};
use crate::rejection::Rejection;
use crate::rejection_log::SessionLabel;
use crate::session::access::AccessMode;
use crate::session::ledger::Ledger;
use crate::session::names::Names;
use crate::session::search_path::KnownPath;
use crate::session::settings::Settings;
use crate::session::text_settings::TextSettings;
use crate::session::{Pipeline, Position};
use crate::transport::{Outbox, Socket, Stall};
use crate::upstream::Upstream;
use crate::wire::WireError;
use crate::wire::backend::TransactionStatus;
use crate::wire::encode::{self, ErrorFields, Severity};
use crate::worker::Worker;
use tokio_util::sync::WaitForCancellationFutureOwned;

pub(crate) use state::{End, LoggedIn};

use declaration::Unanswered;
pub(crate) use declaration::{Wanted, declare, describe_session, identify};

use state::{CommittedMidway, Front, Gate, Process};

/// Turns of the loop before other connections of the worker get theirs.
const TURNS_MAX: usize = 4;

/// What a look at one side has come to, in the turns since the task was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// It was not asked, for what it sends could not be taken.
    Unasked,
    /// It had something.
    Read,
    /// It had nothing, and wakes the task when it has.
    Drained,
}

/// One connection after its login.
pub(crate) struct Relay {
    worker: Rc<Worker>,
    label: SessionLabel,
    backend_pid: i32,
    client: Socket,
    client_outbox: Outbox,
    /// Bytes of the client that are not decided yet.
    client_carry: BytesMut,
    upstream: Upstream,
    /// Bytes of a message of the server that is not complete yet.
    server_carry: BytesMut,
    /// Bytes of a message of the server whose head was looked at: still to relay, or to drop.
    server_rest: replies::Rest,
    /// Bytes of a refused message of the client that have not arrived yet.
    client_discard: usize,
    /// The message at the front of `client_carry` has been answered and is not to be sent.
    drop_front: bool,
    /// What earlier looks at that message have found out.
    front: Front,
    /// Room for it, while more of it must arrive.
    collecting: Collecting,
    /// The verdict on its text, where that was reached on another thread.
    classified: Option<Arc<Verdict>>,
    gate: Gate,
    /// The gate has opened since the client's bytes were looked at.
    resume: bool,
    ledger: Ledger,
    settings: Settings<Arc<Holding>>,
    /// Tokens accepted for this session.
    accepted: Vec<Arc<Holding>>,
    unanswered: Unanswered,
    process: Process,
    /// Why a declaration was not accepted: the message that it was for is refused.
    refusal_on_hold: Option<Box<Rejection>>,
    names: Names,
    /// The takeover that would have ended the session, were that not only observed.
    observed_end: Option<Mark>,
    /// What of the policy holds for the session.
    fence: SessionFence,
    search_path: KnownPath,
    access: AccessMode,
    text_settings: TextSettings,
    position: Position,
    /// How sure read-only mode is, by what was sent in the open pipeline.
    guard: Guard,
    committed_midway: CommittedMidway,
    shown: judgement::ShownSettings,
    /// The server's message that it ends the session, kept back until it has closed its side.
    last_words: Option<BytesMut>,
    /// Wakes the task when the proxy is told to stop.
    stop_watch: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Runs while the client takes nothing of what waits for it.
    stall: Stall,
    /// Class and text of the statement that was judged last, for the record of a rejection.
    judged: judgement::LastJudged,
}

impl Relay {
    /// A session whose login has ended with ReadyForQuery.
    #[must_use]
    pub(crate) fn new(worker: Rc<Worker>, session: LoggedIn) -> Self {
        let accepted = session.settings.token().cloned().into_iter().collect();
        Self {
            worker,
            label: session.label,
            backend_pid: session.backend_pid,
            client: session.client,
            client_outbox: Outbox::default(),
            resume: !session.client_carry.is_empty(),
            client_carry: session.client_carry,
            upstream: session.upstream,
            server_carry: session.server_carry,
            server_rest: replies::Rest::default(),
            client_discard: 0,
            drop_front: false,
            front: Front::Unknown,
            collecting: Collecting::default(),
            classified: None,
            gate: Gate::Open,
            ledger: Ledger::default(),
            settings: session.settings,
            accepted,
            unanswered: Unanswered::default(),
            process: session.identified.map_or(Process::Unknown, Process::Known),
            refusal_on_hold: None,
            names: Names::default(),
            observed_end: None,
            fence: session.fence,
            search_path: KnownPath::default(),
            access: session.access,
            text_settings: session.text_settings,
            position: Position {
                status: TransactionStatus::Idle,
                pipeline: Pipeline::Closed,
            },
            guard: Guard::Sure,
            committed_midway: CommittedMidway::No,
            shown: judgement::ShownSettings::default(),
            last_words: None,
            stop_watch: None,
            stall: Stall::default(),
            judged: judgement::LastJudged::default(),
        }
    }

    /// Runs the session to its end, and takes its record off the register where that is safe.
    pub(crate) async fn run(mut self) {
        // One task drives both sockets to the end.
        std::future::poll_fn(|cx| {
            self.client.belongs_to(cx);
            self.upstream.belongs_to(cx);
            Poll::Ready(())
        })
        .await;
        let end = std::future::poll_fn(|cx| self.poll(cx)).await;
        let quiet = self.ledger.is_empty() && self.upstream.admitted() == 0;
        let Self {
            upstream,
            worker,
            process,
            client,
            label,
            ..
        } = self;
        tracing::debug!(client.addr = %label.client_addr, user = label.user, %end, "session ended");
        if matches!(end, End::ClientLeft) {
            // "Normally" ended means: nothing was in flight, and the server has closed its side.
            let closed = worker
                .timers
                .timeout(worker.close_timeout, upstream.terminate());
            if let (true, Ok(Ok(())), Process::Known(session)) = (quiet, closed.await, process) {
                worker.takeover.release(session.backend);
            }
        } else {
            client.shut_down_write();
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        match self.turns(cx) {
            Ok(()) => Poll::Pending,
            Err(end) => Poll::Ready(end),
        }
    }

    fn turns(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        // A side that has nothing to read wakes the task when it has: it is not asked again before that.
        let (mut server, mut client) = (Side::Unasked, Side::Unasked);
        for _ in 0..TURNS_MAX {
            let waited = self.poll_gate(cx);
            self.poll_flush(cx)?;
            if server != Side::Drained {
                server = self.poll_server(cx)?;
            }
            if client != Side::Drained {
                client = self.poll_client(cx)?;
            }
            if waited || server == Side::Read || client == Side::Read || self.check_shutdown(cx) {
                continue;
            }
            return match self.gate {
                Gate::Closing(why) if self.client_outbox.is_done(&self.client) => {
                    Err(End::Ended(why))
                }
                _ => Ok(()),
            };
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Opens the gate where what it waited for has come. Says whether it did.
    #[inline]
    fn poll_gate(&mut self, cx: &mut Context<'_>) -> bool {
        !matches!(self.gate, Gate::Open) && self.poll_closed_gate(cx)
    }

    fn poll_closed_gate(&mut self, cx: &mut Context<'_>) -> bool {
        let opens = match &mut self.gate {
            // The data of a COPY has to come before the replies to what stands behind it.
            Gate::Replies => self.ledger.is_empty() || self.ledger.is_copying_in(),
            Gate::Identification(_, _, identifying) => match identifying.as_mut().poll(cx) {
                Poll::Ready(answer) => self.on_identified(answer),
                Poll::Pending => false,
            },
            Gate::Declaration(_, _, declaring) => match declaring.as_mut().poll(cx) {
                Poll::Ready(answer) => self.on_declared(answer),
                Poll::Pending => false,
            },
            Gate::Classification(classifying) => match classifying.as_mut().poll(cx) {
                Poll::Ready(verdict) => {
                    self.classified = Some(verdict);
                    true
                }
                Poll::Pending => false,
            },
            Gate::Open | Gate::Lift | Gate::Closing(_) => false,
        };
        if opens {
            self.open_gate();
        }
        opens
    }

    fn open_gate(&mut self) {
        self.gate = Gate::Open;
        self.resume = true;
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        if let Poll::Ready(Err(error)) = self.upstream.poll_flush(cx) {
            // The server may have said why it closed; that is read before the socket is given up.
            tracing::debug!(%error, "writing to the server");
        }
        let limit = &self.worker.write_stall_limit;
        let (outbox, client) = (&mut self.client_outbox, &self.client);
        Ok(self.stall.poll_flush(outbox, client, limit, cx)?)
    }

    fn poll_server(&mut self, cx: &mut Context<'_>) -> Result<Side, End> {
        if !self.client_outbox.has_room() || matches!(self.gate, Gate::Closing(_)) {
            return Ok(Side::Unasked);
        }
        let worker = Rc::clone(&self.worker);
        let mut scratch = worker.scratch.borrow_mut();
        let read = match self.upstream.poll_read(cx, scratch.room()) {
            Poll::Pending => return Ok(Side::Drained),
            Poll::Ready(Ok(read @ 1..)) => read,
            Poll::Ready(closed) => return self.on_server_end(closed),
        };
        let bytes = scratch.front(read);
        if self.server_carry.is_empty() {
            let done = self.on_server_bytes(bytes)?;
            keep(&mut self.server_carry, bytes, done);
        } else {
            // The rest of a message follows what is there of it.
            let mut carry = std::mem::take(&mut self.server_carry);
            carry.extend_from_slice(bytes);
            let done = self.on_server_bytes(&carry)?;
            self.server_carry = behind(carry, done);
        }
        Ok(Side::Read)
    }

    fn on_server_end(&mut self, closed: io::Result<usize>) -> Result<Side, End> {
        let end = closed.map_or_else(End::ServerSocket, |_| End::ServerClosed);
        self.on_server_closed(end).map(|()| Side::Read)
    }

    fn poll_client(&mut self, cx: &mut Context<'_>) -> Result<Side, End> {
        // A ledger without room gets room by itself: the server sends replies whenever its buffer of
        // 8 KiB is full, asked or not, and the ledger holds many times as many.
        let open = matches!(self.gate, Gate::Open);
        if !open || !self.upstream.has_room() || !self.ledger.has_room() {
            return Ok(Side::Unasked);
        }
        // Bytes that waited for the gate are looked at before new ones are read.
        if std::mem::take(&mut self.resume) {
            return self.on_carried();
        }
        let worker = Rc::clone(&self.worker);
        let mut scratch = worker.scratch.borrow_mut();
        let read = match self.client.poll_read(cx, scratch.room()) {
            Poll::Pending if self.collecting.is_late(cx) => return Ok(self.on_late_message()),
            Poll::Pending => return Ok(Side::Drained),
            Poll::Ready(Ok(read @ 1..)) => read,
            Poll::Ready(closed) => return Err(client_end(closed)),
        };
        let bytes = scratch.front(read);
        if self.client_carry.is_empty() {
            let done = self.on_client_bytes(bytes)?;
            keep(&mut self.client_carry, bytes, done);
            return Ok(Side::Read);
        }
        self.client_carry.extend_from_slice(bytes);
        self.on_carried()
    }

    /// The client has stopped in the middle of a message whose beginning is kept.
    fn on_late_message(&mut self) -> Side {
        tracing::info!(client.addr = %self.label.client_addr, "a message did not arrive whole in time");
        self.client_carry = BytesMut::new();
        self.collecting.done();
        self.end_session(
            "a message did not arrive whole",
            &ErrorFields {
                severity: Severity::Fatal,
                sqlstate: "54000",
                message: "terminating connection because a message did not arrive whole in time",
                detail: "A text is read when all of it is there, and what has come of it takes memory until then.",
                hint: "",
            },
        );
        Side::Read
    }

    /// Looks at the bytes of the client that are kept.
    fn on_carried(&mut self) -> Result<Side, End> {
        let carry = std::mem::take(&mut self.client_carry);
        let done = self.on_client_bytes(&carry)?;
        self.client_carry = behind(carry, done);
        Ok(Side::Read)
    }

    /// A proxy that stops lets every session finish its transaction, as PostgreSQL's smart shutdown
    /// would not: then it ends it, and this says so.
    fn check_shutdown(&mut self, cx: &mut Context<'_>) -> bool {
        if self.stop_watch.is_none() {
            // Polled once and kept, so that the task is woken when the time comes.
            let mut watch = Box::pin(self.worker.drain.clone().cancelled_owned());
            let _ = watch.as_mut().poll(cx);
            self.stop_watch = Some(watch);
        }
        let idle = !self.position.is_inside() && self.ledger.is_empty();
        let ends = self.worker.stopping.get() && idle && matches!(self.gate, Gate::Open);
        if ends {
            self.end_session(
                "the proxy is shutting down",
                &ErrorFields {
                    severity: Severity::Fatal,
                    sqlstate: "57P01",
                    message: "terminating connection because pgpalisade is shutting down",
                    detail: "",
                    hint: "Connect again.",
                },
            );
        }
        ends
    }

    /// Tells the client why and closes.
    fn end_session(&mut self, why: &'static str, fields: &ErrorFields<'_>) {
        encode::error_response(self.client_outbox.tail(), fields);
        self.gate = Gate::Closing(why);
    }

    /// The client has broken the protocol: PostgreSQL ends such a session too.
    fn on_wire_error(&mut self, error: WireError) {
        tracing::info!(client.addr = %self.label.client_addr, %error, "protocol violation by the client");
        self.end_session(
            "protocol violation",
            &ErrorFields {
                severity: Severity::Fatal,
                sqlstate: "08P01",
                message: &error.to_string(),
                detail: "",
                hint: "",
            },
        );
    }
}

/// Keeps what is not done with.
#[inline]
fn keep(carry: &mut BytesMut, bytes: &[u8], done: usize) {
    if done < bytes.len() {
        carry.extend_from_slice(bytes.get(done..).unwrap_or_default());
    }
}

/// What is left behind the bytes that are done with. The memory is given back with the last of them.
fn behind(mut carry: BytesMut, done: usize) -> BytesMut {
    if done == carry.len() {
        return BytesMut::new();
    }
    carry.advance(done);
    carry
}

fn client_end(closed: io::Result<usize>) -> End {
    closed.map_or_else(End::ClientSocket, |_| End::ClientLeft)
}
