//! The driver of one connection: one task moves the bytes of both sockets on one thread.
//!
//! While the [session](crate::session) needs nothing, that is a tight loop: finish what is to be sent, read the server,
//! read the client. What must happen before a message can be sent is in [`prepare`]. Nothing here blocks, so a client
//! that does not read or does not send holds up nobody else.

mod client_side;
mod end;
mod prepare;
mod server_side;
mod token_grant;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::client_table::{Cause, ClientState, Publisher};
use crate::rejection::Rejection;
use crate::rejection_log::SessionLabel;
use crate::session::action::{Prerequisite, Refusal};
use crate::session::endings::Ending;
use crate::session::tokens::Wanted;
use crate::session::{Activity, Session};
use crate::takeover::{Lease, Tenure};
use crate::transport::Socket;
use crate::upstream::Upstream;
use crate::worker::Worker;
use bytes::BytesMut;
use client_side::ClientSide;
use server_side::ServerSide;
use token_grant::Grant;

pub(crate) use end::End;

/// Turns of the loop before other connections of the worker get theirs.
const TURNS_MAX: usize = 4;

/// A client that does not read why it gets no session, or has none any more, is not waited for.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

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

/// One connection behind PostgreSQL's authentication.
pub(crate) struct Relay {
    worker: Rc<Worker>,
    label: Arc<SessionLabel>,
    /// Shows what the session does.
    shown: Publisher,
    session: Session,
    client: ClientSide,
    server: ServerSide,
    /// The time of its server as the primary, where that is known.
    tenure: Option<Tenure>,
    /// Those of tokens that it holds, or is about to.
    leases: Vec<Lease>,
    /// Wakes the task when the proxy is told to stop, or another server is the primary.
    end_watch: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// What a login leaves of a connection, beside the client's socket.
pub(crate) struct Established {
    /// Bytes of the client that have arrived already.
    pub(crate) client_bytes: BytesMut,
    /// The server's socket.
    pub(crate) server: Socket,
    /// How long that is the primary, where it is known.
    pub(crate) tenure: Option<Tenure>,
    /// Bytes of the server that have arrived already, behind its first ReadyForQuery.
    pub(crate) server_bytes: BytesMut,
}

/// Why a session does not begin.
pub(crate) enum NotBegun {
    /// Its tokens were not accepted.
    Refused(Box<Rejection>),
    /// It has ended meanwhile.
    Ended(End),
}

impl From<End> for NotBegun {
    fn from(end: End) -> Self {
        Self::Ended(end)
    }
}

impl Relay {
    /// A connection of which the server has said that it is ready.
    #[must_use]
    pub(crate) fn new(
        worker: Rc<Worker>,
        label: Arc<SessionLabel>,
        shown: Publisher,
        session: Session,
        client: Socket,
        established: Established,
    ) -> Self {
        Self {
            worker,
            label,
            shown,
            session,
            client: ClientSide::new(client, established.client_bytes),
            server: ServerSide::new(Upstream::new(established.server), established.server_bytes),
            tenure: established.tenure,
            leases: Vec::new(),
            end_watch: None,
        }
    }

    /// Has the tokens of the startup packet accepted, and tells the client that it is ready.
    ///
    /// # Errors
    ///
    /// [`NotBegun`].
    pub(crate) async fn begin(
        &mut self,
        wanted: Option<&Wanted>,
        ready: &[u8],
    ) -> Result<(), NotBegun> {
        self.take_over().await;
        if let Some(wanted) = wanted {
            if let Grant::Refused(rejection) = self.obtain(wanted, None).await? {
                self.session.record_refused_login(&rejection);
                self.put_output();
                return Err(NotBegun::Refused(rejection));
            }
            self.session.start_with(wanted);
        }
        self.client.put_own(ready);
        Ok(self.on_kept_server_bytes()?)
    }

    /// Both sockets wake the task that calls this.
    async fn take_over(&mut self) {
        self.end_watch = None;
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
        let timers = self.worker.shared.timers.clone();
        let _ = timers.timeout(REFUSAL_TIMEOUT, self.send_rest()).await;
        self.client.socket.shut_down_write();
    }

    /// Runs the session to its end, and takes its record off the register where that is safe.
    pub(crate) async fn run(mut self) {
        self.take_over().await;
        self.worker.shared.metrics.session_begun();
        let end = match self.serve().await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        self.worker.shared.metrics.session_ended(end.reason());
        self.finish(end).await;
    }

    async fn serve(&mut self) -> Result<Infallible, End> {
        if self.worker.gate.is_shut() {
            let worker = Rc::clone(&self.worker);
            self.while_the_client_stays(worker.gate.is_open()).await?;
        }
        let mut need = self.on_kept_client_bytes()?;
        loop {
            need = match need {
                None => Some(std::future::poll_fn(|cx| self.poll_relay(cx)).await?),
                Some(prerequisite) => {
                    let waits = ClientState::Session(Activity::Active);
                    self.shown.entry().set_state(waits);
                    let since = Instant::now();
                    // In a box, for it is large, and most sessions are in none at most times.
                    Box::pin(self.prepare(prerequisite)).await?;
                    self.worker.clock.prepared(since);
                    self.on_kept_client_bytes()?
                }
            };
        }
    }

    /// Moves bytes both ways, until a message of the client needs something first.
    fn poll_relay(&mut self, cx: &mut Context<'_>) -> Poll<Result<Prerequisite, End>> {
        // A side that has nothing to read wakes the task when it has: it is not asked again before that.
        let (mut server, mut client) = (Side::Unasked, Side::Unasked);
        for _ in 0..TURNS_MAX {
            self.poll_flush(cx)?;
            if server != Side::Drained {
                server = self.poll_server(cx)?;
            }
            if client != Side::Drained {
                client = match self.poll_client(cx)? {
                    Ok(side) => side,
                    Err(prerequisite) => return Poll::Ready(Ok(prerequisite)),
                };
            }
            if server != Side::Read && client != Side::Read {
                self.check_end(cx)?;
                if self.is_to_stop() {
                    return Poll::Ready(Err(self.end_for_shutdown()));
                }
                self.publish();
                if !self.leases.is_empty() && self.session.is_answered() {
                    self.give_back_leases();
                }
                return Poll::Pending;
            }
        }
        self.check_end(cx)?;
        self.publish();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Shows what the session does.
    #[inline]
    fn publish(&mut self) {
        let (activity, tokens) = (self.session.activity(), self.session.tokens());
        self.shown.publish(activity, tokens);
    }

    #[inline]
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        match self.server.upstream.is_flushed() && self.client.is_flushed() {
            true => Ok(()),
            false => self.poll_flush_waiting(cx),
        }
    }

    fn poll_flush_waiting(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        if let Poll::Ready(Err(error)) = self.server.upstream.poll_flush(cx) {
            // The server may have said why it closed; that is read before the socket is given up.
            tracing::debug!(%error, "writing to the server");
        }
        let ClientSide {
            socket,
            outbox,
            stall,
            ..
        } = &mut self.client;
        Ok(stall.poll_flush(outbox, socket, &self.worker.write_stall_limit, cx)?)
    }

    /// Moves what the server sends while something is waited for, until the server has nothing more. Says whether
    /// other connections are to get their turn first.
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

    /// Passes on what the session itself says, behind all that was passed on before.
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
            let Refusal {
                rejection,
                enforcement,
                statement,
            } = refusal;
            let rejections = &self.worker.shared.rejections;
            let statement = statement.map(|judged| rejections.statement(&judged));
            let statement = statement.unwrap_or_default();
            self.worker
                .record(&rejection, &self.label, statement, enforcement);
        }
    }

    /// Follows a policy that was loaded since the last message. Says whether there was one.
    #[inline]
    fn follow_policy(&mut self) -> bool {
        let is_another = !self.worker.is_in_force(self.session.fence());
        if is_another {
            self.session.follow(self.worker.fence_for(&self.label));
        }
        is_another
    }

    /// The session has ended itself, and has told the client why.
    fn ended(&mut self, ending: impl Into<Box<Ending>>) -> End {
        let ending = ending.into();
        self.put_output();
        let client_addr = self.label.client_addr;
        match &*ending {
            Ending::ProtocolViolation(error) => {
                tracing::info!(%client_addr, %error, "protocol violation by the client");
            }
            Ending::OwnStatement(message) => {
                tracing::error!(%client_addr, error = %message, "a statement of the proxy's own failed");
            }
            Ending::Unguarded(message) => {
                tracing::error!(%client_addr, error = %message, "ending a session that cannot be guarded");
            }
            Ending::Contradiction { reply, command_tag } => {
                // On the spot, so that what it has open cannot be committed.
                self.server.upstream.abort();
                tracing::error!(
                    %client_addr,
                    user = self.label.user,
                    %reply,
                    command_tag,
                    "PostgreSQL's reply does not match the proxy's decision: ending the session"
                );
            }
            Ending::Unanswered
            | Ending::TakenOver
            | Ending::OutcomeUnknown
            | Ending::Deposed
            | Ending::ByServer => {}
        }
        End::Session(ending)
    }

    /// Ends the session where its server is not the primary any more, or an operator says so.
    fn check_end(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        if self.end_watch.is_none() {
            let (drain, tenure) = (self.worker.drain.clone(), self.tenure.clone());
            let entry = Arc::clone(self.shown.entry());
            // Polled once and kept, so that the task is woken when the time comes.
            let mut watch: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
                let over = async {
                    match &tenure {
                        Some(tenure) => tenure.over().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = drain.cancelled() => {}
                    () = over => {}
                    _ = entry.is_to_end() => {}
                }
            });
            let _ = watch.as_mut().poll(cx);
            self.end_watch = Some(watch);
        }
        if let Some(cause) = self.shown.entry().cause() {
            return Err(self.end_for(cause));
        }
        if self.tenure.as_ref().is_none_or(|tenure| !tenure.is_over()) {
            return Ok(());
        }
        let ending = self.session.end_with_its_server();
        self.server.upstream.abort();
        Err(self.ended(ending))
    }

    /// A proxy that stops lets every session finish its transaction, as PostgreSQL's smart shutdown
    /// would not: then it ends it.
    fn is_to_stop(&self) -> bool {
        self.worker.stopping.get() && self.session.is_idle()
    }

    /// Nobody waits for what is in flight: a client that does not read, or a statement that does not end, is what a
    /// KILL is for, and another may lead soon after a lost lease.
    fn end_for(&mut self, cause: Cause) -> End {
        let (why, end) = match cause {
            Cause::Killed => ("an operator ended it with KILL", End::Killed),
            Cause::LeaseLost => ("its lease could not be renewed in time", End::LeaseLost),
        };
        let mut message = format!("terminating connection because {why}");
        let (sqlstate, hint) = match self.session.is_answered() {
            true => ("57P01", "Connect again."),
            false => {
                message.push_str(", and it is not known whether the last statement was committed");
                ("08007", "Connect again, and read the data to find out.")
            }
        };
        self.session.say_fatal(sqlstate, &message, "", hint);
        self.put_output();
        self.server.upstream.abort();
        end
    }

    fn end_for_shutdown(&mut self) -> End {
        self.session.say_fatal(
            "57P01",
            "terminating connection because pgpalisade is shutting down",
            "",
            "Connect again.",
        );
        self.put_output();
        End::Shutdown
    }
}

/// Keeps what is not done with.
#[inline]
fn keep(kept: &mut BytesMut, bytes: &[u8], done: usize) {
    if done < bytes.len() {
        kept.extend_from_slice(bytes.get(done..).unwrap_or_default());
    }
}

/// What is left behind the bytes that are done with. The memory is given back with the last of them.
fn behind(mut kept: BytesMut, done: usize) -> BytesMut {
    if done == kept.len() {
        return BytesMut::new();
    }
    bytes::Buf::advance(&mut kept, done);
    kept
}
