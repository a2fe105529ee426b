//! Reading the client: the session decides each message, and admitted ones go on to the server.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;

use super::client_side::client_end;
use super::{End, Relay, Side, behind, keep};
use crate::session::action::{Action, Prerequisite};
use crate::session::frame::Frame;
use crate::wire::frontend;
use crate::wire::header::{self, Header};

/// Number of processed bytes, and what the next message needs.
struct Done {
    bytes: usize,
    need: Option<Prerequisite>,
}

impl Relay {
    /// Reads the client. The inner error is what a message needs first.
    #[inline]
    pub(super) fn poll_client(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Result<Result<Side, Prerequisite>, End> {
        // A full ledger gets room without help: the server sends replies whenever its buffer of 8 KiB is full, and
        // the ledger holds many times as many. A client must read what it is refused.
        let has_room = self.server.upstream.has_room() && self.session.has_room();
        if !has_room || !self.client.socket.has_room() {
            return Ok(Ok(Side::Unasked));
        }
        if self.client.worker.gate.is_shut() && self.session.is_idle() {
            return self.await_gate(cx).map(Ok);
        }
        if self.client.socket.is_awaited(cx) {
            self.await_client(cx).map(Ok)
        } else if self.is_to_part() {
            let _ = self.client.look_later(cx);
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

    /// Holds the client up. If it leaves meanwhile, nothing of what it has sent begins.
    #[cold]
    fn await_gate(&mut self, cx: &mut Context<'_>) -> Result<Side, End> {
        if self.client.socket.is_closed_by_peer() {
            return Err(End::ClientLeft);
        }
        self.client
            .collecting
            .restart(&self.client.worker.collected);
        let _ = self.client.look_later(cx);
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
                // All before it is answered first, as by PostgreSQL.
                Err(_) if !self.session.is_settled() => {
                    need = Some(Prerequisite::Replies);
                    break;
                }
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
            if collecting.may_wait(header, bytes, budget, timers) {
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
