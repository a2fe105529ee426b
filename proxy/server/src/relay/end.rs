//! The end of a connection.

use std::io;
use std::task::{Context, Poll};

use super::{REFUSAL_TIMEOUT, Relay, Side};
use crate::backends::OpenError;
use crate::forced_end::Cause;
use crate::session::Identity;
use crate::session::endings::Ending;
use crate::takeover::Lease;
use crate::transport::Unsent;
use crate::upstream::Rest;

/// What a client is told when the proxy stops.
pub(super) const SHUTTING_DOWN: &str = "terminating connection because pgpalisade is shutting down";

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The client said goodbye.
    #[error("the client said goodbye")]
    Goodbye,
    /// The client closed its socket, or its sending side.
    #[error("the client left")]
    ClientLeft,
    /// The server closed its socket.
    #[error("the server closed the connection")]
    ServerClosed,
    /// The session has told the client why it ends.
    #[error("the session was ended: {0}")]
    Session(Box<Ending>),
    /// The proxy stops.
    #[error("the session was ended: the proxy is shutting down")]
    Shutdown,
    /// Neither side has asked for it.
    #[error("{0}")]
    Forced(Cause),
    /// Too many clients keep their lent server connections.
    #[error("the session was ended: too many clients keep their server connections")]
    Unpinned,
    /// There is no server connection for it.
    #[error("the session was ended: {0}")]
    NotLent(Box<OpenError>),
    /// The server of a passthrough connection is no longer the primary.
    #[error("the server is no longer the primary")]
    Deposed,
    /// The client stopped in the middle of a message.
    #[error("the session was ended: a message did not arrive whole")]
    LateMessage,
    /// The client's socket failed.
    #[error("the client's connection failed: {0}")]
    ClientSocket(io::Error),
    /// The client has taken no byte for too long.
    #[error("the client does not read")]
    ClientStalled,
    /// The server's socket failed.
    #[error("the server's connection failed: {0}")]
    ServerSocket(io::Error),
}

impl End {
    /// Label value for metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Goodbye | Self::ClientLeft => "client_left",
            Self::ServerClosed => "server_closed",
            Self::Session(ending) => match **ending {
                Ending::ProtocolViolation(_) => "protocol_violation",
                Ending::Contradiction { .. } => "contradiction",
                Ending::OwnStatement(_) => "own_statement_failed",
                Ending::Unguarded(_) => "unguarded",
                Ending::Unanswered => "declaration_unanswered",
                Ending::TakenOver => "taken_over",
                Ending::OutcomeUnknown => "outcome_unknown",
                Ending::Deposed => "deposed_primary",
                Ending::ByServer => "ended_by_server",
            },
            Self::Shutdown | Self::Forced(Cause::ShuttingDown) => "shutdown",
            Self::Forced(Cause::Killed) => "killed",
            Self::Forced(Cause::LeaseLost) => "lease_lost",
            Self::Forced(Cause::TermEnded(_)) => "leadership_lost",
            Self::Forced(Cause::LeadGained) => "leadership_gained",
            Self::Unpinned => "too_many_pinned",
            Self::NotLent(_) => "no_server_connection",
            Self::Deposed => "deposed_primary",
            Self::LateMessage => "late_message",
            Self::ClientSocket(_) => "client_connection_failed",
            Self::ClientStalled => "client_stalled",
            Self::ServerSocket(_) => "server_connection_failed",
        }
    }
}

// Every look at a socket returns this, in registers up to this size.
const _: () = assert!(size_of::<Result<Side, End>>() <= 16);

impl From<Unsent> for End {
    fn from(unsent: Unsent) -> Self {
        match unsent {
            Unsent::Socket(error) => Self::ClientSocket(error),
            Unsent::Stalled => Self::ClientStalled,
        }
    }
}

impl End {
    /// Whether the server connection has ended, rather than the client's.
    fn is_servers(&self) -> bool {
        match self {
            Self::ServerClosed => true,
            // Of a message that is not PostgreSQL's, or not admitted, nothing is known.
            Self::ServerSocket(error) => !matches!(
                error.kind(),
                io::ErrorKind::Other | io::ErrorKind::PermissionDenied
            ),
            Self::Session(ending) => matches!(
                **ending,
                Ending::TakenOver | Ending::OutcomeUnknown | Ending::Deposed | Ending::ByServer
            ),
            _ => false,
        }
    }
}

impl Relay {
    /// Handles the end of a session that has told its client why.
    pub(super) fn ended(&mut self, ending: impl Into<Box<Ending>>) -> End {
        let ending = ending.into();
        self.put_output();
        let client_addr = self.client.label.client_addr;
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
                // At once, so that its open transaction cannot be committed.
                self.server.upstream.abort();
                tracing::error!(
                    %client_addr,
                    user = self.client.label.user,
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

    /// Ends the session if its server is no longer the primary, or an operator or a lost lease ends it.
    pub(super) fn check_end(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        if !self.is_woken {
            self.client.ends.register(cx);
            self.server.register_end(cx);
            self.is_woken = true;
        }
        if let Some(cause) = self.client.shown.entry().end.cause() {
            return Err(self.end_for(cause));
        }
        if !self.server.is_deposed() {
            return Ok(());
        }
        let ending = self.session.end_with_its_server();
        self.server.upstream.abort();
        Err(self.ended(ending))
    }

    /// Ends the session without waiting for what is in flight. KILL is for a client that does not read, or a
    /// statement that does not end; after a lost lease another client, or another proxy, may lead soon.
    fn end_for(&mut self, cause: Cause) -> End {
        let (mut message, (mut sqlstate, detail, mut hint)) = (cause.message(), cause.advice());
        if self.session.may_have_committed() {
            message.push_str(", and it is not known whether the last statement was committed");
            (sqlstate, hint) = ("08007", "Connect again, and read the data to find out.");
        }
        self.session.say_fatal(sqlstate, &message, detail, hint);
        self.put_output();
        self.server.upstream.abort();
        End::Forced(cause)
    }

    pub(super) fn end_for_shutdown(&mut self) -> End {
        self.session
            .say_fatal("57P01", SHUTTING_DOWN, "", "Connect again.");
        self.put_output();
        End::Shutdown
    }

    /// Whether only the lent server connection has ended, and the client can be told.
    pub(super) fn may_survive(&self, end: &End) -> bool {
        let is_within_a_message = matches!(self.server.rest, Rest::Relay(_));
        end.is_servers() && !is_within_a_message && self.session.outlives_server()
    }

    pub(crate) async fn finish(&mut self, end: End) {
        let label = &self.client.label;
        tracing::debug!(client_addr = %label.client_addr, user = label.user, %end, "session ended");
        // Otherwise only in a login.
        if self.may_survive(&end) {
            self.session.refuse_login();
            self.put_output();
        }
        // Send what waits for a client that still listens, above all a last error.
        match end {
            End::Goodbye | End::ClientLeft => return self.part(&end).await,
            End::ClientSocket(_) | End::ClientStalled => {}
            // A client that does not read may be the reason for KILL, and must not hold up a lease.
            End::Forced(_) => {
                let timers = self.client.worker.shared.timers.clone();
                let _ = timers.timeout(REFUSAL_TIMEOUT, self.send_rest()).await;
            }
            _ => self.send_rest_until_ended().await,
        }
        self.client.socket.shut_down_write();
    }

    /// The client sends nothing more. Like PostgreSQL, the proxy answers all that was sent before it closes, as long
    /// as bytes move.
    async fn part(&mut self, end: &End) {
        let quiet = self.session.is_answered() && self.server.upstream.rest() == 0;
        // Within a request the server sees what PostgreSQL sees of such a client: no goodbye.
        if quiet || matches!(end, End::Goodbye) {
            self.server.upstream.say_goodbye();
        }
        let last = self.relay_to_the_end().await;
        if matches!(end, End::Goodbye) {
            self.client.leases.drain(..).for_each(Lease::give_back);
        }
        let (timers, within) = (
            self.client.worker.shared.timers.clone(),
            self.client.worker.close_timeout,
        );
        let has_closed = match last {
            // The client's messages still reach the server, though nobody waits for an answer.
            Some(End::ClientSocket(_) | End::ClientStalled) => {
                let closed = timers.timeout(within, self.server.upstream.closed());
                matches!(closed.await, Ok(Ok(())))
            }
            Some(last) => {
                let _ = timers.timeout(within, self.send_rest()).await;
                matches!(last, End::ServerClosed)
            }
            None => false,
        };
        self.client.socket.shut_down_write();
        // A normal end: nothing was in flight, and the server has closed its side.
        if let (true, true, Identity::Known(session)) = (quiet, has_closed, self.session.identity())
        {
            self.client.worker.shared.takeover.release(session.backend);
        }
    }

    /// Relays the last replies until a side has closed; `None` if nothing has moved for too long.
    async fn relay_to_the_end(&mut self) -> Option<End> {
        let (timers, within) = (
            self.client.worker.shared.timers.clone(),
            self.client.worker.close_timeout,
        );
        loop {
            let moves = std::future::poll_fn(|cx| self.poll_last(cx));
            match timers.timeout(within, moves).await {
                Ok(Ok(())) => tokio::task::yield_now().await,
                Ok(Err(end)) => return Some(end),
                Err(_) => return None,
            }
        }
    }

    /// Ready when bytes have moved.
    fn poll_last(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let waiting = self.client.socket.waiting();
        self.poll_flush(cx)?;
        if let Poll::Ready(Err(error)) = self.server.upstream.poll_end(cx) {
            tracing::debug!(%error, "writing to the server");
        }
        let has_read = self.poll_server(cx)? == Side::Read;
        self.check_end(cx)?;
        if has_read || self.client.socket.waiting() < waiting {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Sends the rest, unless the connection must end at once meanwhile.
    async fn send_rest_until_ended(&mut self) {
        let sending = std::future::poll_fn(|cx| {
            self.client.ends.register(cx);
            self.poll_flush(cx)?;
            match self.client.poll_sent(cx) {
                Poll::Pending if self.client.shown.entry().end.cause().is_some() => {
                    Poll::Ready(Ok(()))
                }
                sent => sent,
            }
        });
        let _sent: Result<(), End> = sending.await;
    }

    pub(super) async fn send_rest(&mut self) -> Result<(), End> {
        std::future::poll_fn(|cx| {
            self.poll_flush(cx)?;
            self.client.poll_sent(cx)
        })
        .await
    }
}
