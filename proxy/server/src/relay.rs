//! The driver of one connection: one task moves the bytes of both sockets on one thread.
//!
//! While the [session](crate::session) needs nothing, that is a tight loop: flush, read the server, read the client.
//! [`prepare`] does what must happen before a message can be sent. Nothing here blocks, so a client that does not
//! read or send holds up no other.

mod client_messages;
mod client_side;
mod end;
mod parked;
mod prepare;
mod server_side;
mod token_grant;

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::backends::lending::{Lent, Seat};
use crate::client_table::ClientState;
use crate::rejection::Rejection;
use crate::session::action::{Prerequisite, RecordedRefusal};
use crate::session::token_request::TokenRequest;
use crate::session::{Met, Session};
use crate::takeover::PrimaryTerm;
use crate::transport::Socket;
use crate::upstream::{ServerSide, Upstream};
use bytes::BytesMut;
use tokio::sync::OwnedSemaphorePermit;

pub(crate) use client_side::ClientSide;
pub(crate) use end::End;
pub(crate) use parked::{Parked, Served};

/// Turns of the loop before other connections of the worker get theirs.
const TURNS_MAX: usize = 4;

/// Time for a client to read why it gets no session, or why its session ended.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Result of a look at one side, in the turns since the task was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// Not read, because the other side has no room.
    Unasked,
    /// Bytes were read.
    Read,
    /// No bytes; the task is woken when some arrive.
    Drained,
}

/// What a relay stops for.
enum Turn {
    Need(Prerequisite),
    Park,
}

/// A connection that PostgreSQL has authenticated.
pub(crate) struct Relay {
    pub(crate) client: Box<ClientSide>,
    session: Session,
    server: Box<ServerSide>,
    /// The client's place in the pool and its server connection, if that is lent.
    lent: Option<(Seat, Lent)>,
    /// Place beside the pool, up to the end.
    _own_place: Option<OwnedSemaphorePermit>,
    /// Whether the calling task is woken at the client's and the server's end.
    is_woken: bool,
}

/// The server's part of a connection after its login.
pub(crate) struct Established {
    pub(crate) server: Socket,
    /// The server's term as the primary, if known.
    pub(crate) tenure: Option<PrimaryTerm>,
    /// Bytes that the server has sent after its first ReadyForQuery.
    pub(crate) server_bytes: BytesMut,
    /// Its place beside the pool.
    pub(crate) own_place: Option<OwnedSemaphorePermit>,
}

pub(crate) enum NotBegun {
    /// The session's tokens were not accepted.
    Refused(Box<Rejection>),
    /// The session ended meanwhile.
    Ended(End),
}

impl From<End> for NotBegun {
    fn from(end: End) -> Self {
        Self::Ended(end)
    }
}

impl Relay {
    /// A connection whose server has said that it is ready.
    #[must_use]
    pub(crate) fn new(client: ClientSide, session: Session, established: Established) -> Self {
        let upstream = Upstream::new(established.server);
        let server = ServerSide::new(upstream, established.server_bytes, established.tenure);
        Self {
            client: Box::new(client),
            session,
            server: Box::new(server),
            lent: None,
            _own_place: established.own_place,
            is_woken: false,
        }
    }

    /// Declares the tokens of the startup packet, unless this server connection has them already, and tells the client
    /// that it is ready.
    pub(crate) async fn begin(
        &mut self,
        wanted: Option<&TokenRequest>,
        ready: &[u8],
    ) -> Result<(), NotBegun> {
        self.take_over().await;
        if let Some(wanted) = wanted
            && !self.session.start_with(wanted)
        {
            if self.client.worker.gate.is_shut() {
                let worker = Rc::clone(&self.client.worker);
                self.while_the_client_stays(worker.gate.is_open()).await?;
            }
            // Before the worker can obey PAUSE, which waits for the declaration, as for one by SET.
            self.client.shown.entry().set_state(ClientState::Active);
            if let Met::Refused(rejection) = self.obtain(wanted, None).await? {
                self.session.record_refused_login(&rejection);
                self.put_output();
                return Err(NotBegun::Refused(rejection));
            }
            self.session.start_with(wanted);
        }
        self.put_output();
        self.client.put_own(ready);
        self.on_kept_server_bytes()?;
        // PAUSE no longer waits for it.
        self.publish();
        Ok(())
    }

    /// Makes both sockets wake the calling task.
    async fn take_over(&mut self) {
        self.is_woken = false;
        std::future::poll_fn(|cx| {
            self.client.socket.belongs_to(cx);
            self.server.upstream.belongs_to(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Tells the client why there is no session, and closes.
    pub(crate) async fn refuse(mut self, error: &[u8]) {
        self.client.put_own(error);
        let timers = self.client.worker.shared.timers.clone();
        let _ = timers.timeout(REFUSAL_TIMEOUT, self.send_rest()).await;
        self.client.socket.shut_down_write();
    }

    /// Runs the session to its end, or until the client needs its server connection no more.
    async fn run(mut self: Box<Self>) -> Option<Parked> {
        self.take_over().await;
        let end = match self.serve().await {
            Ok(()) if self.session.may_part() && !self.server.is_midway() => {
                return self.park(None);
            }
            // It has said so in the meantime.
            Ok(()) => End::ServerClosed,
            Err(end) => end,
        };
        if self.may_survive(&end) {
            return self.park(Some(&end));
        }
        if matches!(end, End::Goodbye | End::ClientLeft) && self.is_reset_enough() {
            if let Some(parked) = self.park(None) {
                Box::pin(parked.finish(end)).await;
            }
            return None;
        }
        self.client
            .worker
            .shared
            .metrics
            .session_ended(end.reason());
        let (lent, is_busy) = (self.lent.take(), !self.session.is_answered());
        let entry = Arc::clone(self.client.shown.entry());
        let finish = async move {
            self.finish(end).await;
            // The next leader does not wait for the cancel request, whether it follows the term or the lease.
            entry.leave_term();
            drop(self);
            if let Some((_, lent)) = lent.filter(|_| is_busy) {
                lent.cancel().await;
            }
        };
        Box::pin(finish).await;
        None
    }

    async fn serve(&mut self) -> Result<(), End> {
        if self.session.is_resetting() {
            self.await_reset().await?;
        }
        if self.session.is_to_resume() {
            Box::pin(self.resume()).await?;
            if self.session.has_next_reply() {
                return Ok(());
            }
        } else if self.client.worker.gate.is_shut() {
            let worker = Rc::clone(&self.client.worker);
            self.while_the_client_stays(worker.gate.is_open()).await?;
        }
        let mut need = self.on_kept_client_bytes()?;
        loop {
            need = match need {
                None => match std::future::poll_fn(|cx| self.poll_relay(cx)).await? {
                    Turn::Need(prerequisite) => Some(prerequisite),
                    Turn::Park => return Ok(()),
                },
                Some(prerequisite) => {
                    self.client.shown.entry().set_state(ClientState::Active);
                    let since = Instant::now();
                    match prerequisite {
                        Prerequisite::Replies => self.await_replies().await?,
                        // Boxed because it is large, and rarely needed.
                        other => Box::pin(self.prepare(other)).await?,
                    }
                    self.client.worker.clock.prepared(since);
                    self.on_kept_client_bytes()?
                }
            };
        }
    }

    /// Moves bytes both ways until a client message needs something first, or the client needs no server connection.
    fn poll_relay(&mut self, cx: &mut Context<'_>) -> Poll<Result<Turn, End>> {
        // A drained side wakes the task, so it is not asked again before that.
        let (mut server, mut client) = (Side::Unasked, Side::Unasked);
        for _ in 0..TURNS_MAX {
            self.poll_flush(cx)?;
            if server != Side::Drained {
                server = self.poll_server(cx)?;
                // Before the next message is read: it may want no tokens, and then another server connection, which
                // no takeover ends.
                if server == Side::Read && self.is_to_park()? {
                    return Poll::Ready(Ok(Turn::Park));
                }
            }
            if client != Side::Drained {
                client = match self.poll_client(cx)? {
                    Ok(side) => side,
                    Err(prerequisite) => return Poll::Ready(Ok(Turn::Need(prerequisite))),
                };
            }
            if server != Side::Read && client != Side::Read {
                self.check_end(cx)?;
                // A stopping proxy lets every session finish its transaction, and then ends it. PostgreSQL's smart
                // shutdown would wait for the session.
                if self.client.worker.stopping.get() && self.session.is_idle() {
                    return Poll::Ready(Err(self.end_for_shutdown()));
                }
                self.publish();
                // The end of a transaction may bring a token back.
                if !self.client.leases.is_empty() && self.session.is_idle() {
                    self.client.give_back_leases(self.session.tokens());
                }
                if self.is_to_park()? {
                    return Poll::Ready(Ok(Turn::Park));
                }
                return Poll::Pending;
            }
        }
        self.check_end(cx)?;
        self.publish();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    #[inline]
    fn publish(&mut self) {
        let (activity, tokens) = (self.session.activity(), self.session.tokens());
        self.client.shown.publish(activity, tokens);
    }

    #[inline]
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        if self.server.upstream.is_flushed() && self.client.is_flushed() {
            Ok(())
        } else {
            self.poll_flush_waiting(cx)
        }
    }

    fn poll_flush_waiting(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        if let Poll::Ready(Err(error)) = self.server.upstream.poll_flush(cx) {
            // The server may have said why it closed; that is read before the socket is given up.
            tracing::debug!(%error, "writing to the server");
        }
        self.client.poll_flush(cx)
    }

    /// Moves the server's messages while something is waited for. After a few turns other connections get theirs.
    fn poll_replies(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        for _ in 0..TURNS_MAX {
            self.poll_flush(cx)?;
            if self.poll_server(cx)? != Side::Read {
                return self.check_end(cx);
            }
        }
        self.check_end(cx)?;
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Passes on the session's own messages, after everything passed on before.
    fn put_output(&mut self) {
        let output = self.session.output();
        if !output.to_server.is_empty() {
            let own = std::mem::take(&mut output.to_server);
            self.server.upstream.put_own(&own);
        }
        if !output.to_client.is_empty() {
            let own = std::mem::take(&mut output.to_client);
            self.client.put_own(&own);
        }
        for refusal in std::mem::take(&mut output.refusals) {
            let RecordedRefusal {
                rejection,
                enforcement,
                statement,
            } = refusal;
            let rejections = &self.client.worker.shared.rejections;
            let statement = statement.map(|judged| rejections.statement(&judged));
            let statement = statement.unwrap_or_default();
            self.client
                .worker
                .record(&rejection, &self.client.label, statement, enforcement);
        }
    }

    /// Applies a policy that was loaded since the last message. Returns whether there was one.
    #[inline]
    fn follow_policy(&mut self) -> bool {
        let is_another = !self.client.worker.is_in_force(self.session.fence());
        if is_another {
            self.session
                .follow(self.client.worker.fence_for(&self.client.label));
        }
        is_another
    }
}

/// Keeps the bytes from `done` on.
#[inline]
fn keep(kept: &mut BytesMut, bytes: &[u8], done: usize) {
    if done < bytes.len() {
        kept.extend_from_slice(bytes.get(done..).unwrap_or_default());
    }
}

/// Drops the first `done` bytes. If nothing is left, the memory is freed.
fn behind(mut kept: BytesMut, done: usize) -> BytesMut {
    if done == kept.len() {
        return BytesMut::new();
    }
    bytes::Buf::advance(&mut kept, done);
    kept
}
