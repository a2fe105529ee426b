//! A client between two transactions, without a server connection.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use pgpalisade_policies::Leftover;
use pgpalisade_pool::Residue;
use pgpalisade_session::endings::{Ending, put_fatal};
use tokio::task::coop;

use super::end::SHUTTING_DOWN;
use super::{ClientSide, End, REFUSAL_TIMEOUT, Relay};
use crate::backends::OpenError;
use crate::backends::lending::{Borrowed, Seat};
use crate::pooling::backends::Tokens;
use crate::session::token_request::TokenRequest;
use crate::session::unserved::Needs;
use crate::session::{Activity, ClientHalf, Session};
use crate::takeover::Lease;
use crate::wire::encode::Severity;
use crate::wire::frontend::FrontendTag;

/// A client's session, with a server connection or between two.
pub(crate) enum Served {
    Bound(Box<Relay>),
    Parked(Parked),
}

impl Served {
    /// Runs the session to its end.
    pub(crate) async fn run(mut self) {
        let metrics = match &self {
            Self::Bound(relay) => relay.client.worker.shared.metrics.clone(),
            Self::Parked(parked) => parked.client.worker.shared.metrics.clone(),
        };
        metrics.session_begun();
        loop {
            let next = match self {
                Self::Bound(relay) => relay.run().await.map(Self::Parked),
                Self::Parked(parked) => parked.next().await.map(Self::Bound),
            };
            match next {
                Some(next) => self = next,
                None => return,
            }
        }
    }
}

pub(crate) struct Parked {
    client: Box<ClientSide>,
    half: Box<ClientHalf>,
    seat: Seat,
}

impl Relay {
    /// Whether the client needs its lent server connection no more. One that leaves something there keeps it.
    #[inline]
    pub(super) fn is_to_park(&mut self) -> Result<bool, End> {
        match self.lent {
            None => Ok(false),
            Some(_) => self.is_lent_to_park(),
        }
    }

    fn is_lent_to_park(&mut self) -> Result<bool, End> {
        let Some((_, lent)) = &self.lent else {
            return Ok(false);
        };
        // It has said so, and has not closed yet: the client's next message would be lost.
        if self.session.is_terminated() && self.session.is_idle() && self.session.outlives_server()
        {
            return Err(End::ServerClosed);
        }
        let is_midway = self.server.is_midway() || self.client.has_message();
        if is_midway || !self.session.may_part() {
            return Ok(false);
        }
        match self.session.leftover() {
            None => Ok(true),
            Some(left) if lent.may_pin() => {
                self.keep_lent(left);
                Ok(false)
            }
            Some(left) => Err(self.end_unpinned(left)),
        }
    }

    /// Whether a reset removes all that a client, which has nothing in flight, has left in its lent server connection.
    pub(super) fn is_reset_enough(&self) -> bool {
        let is_quiet = self.session.may_part() && !self.server.is_midway();
        let outlives = self
            .session
            .leftover()
            .is_some_and(Leftover::outlives_resets);
        self.lent.is_some() && is_quiet && !outlives
    }

    /// Parts the client from its lent server connection, and gives that back, unless it was lost.
    pub(super) fn park(self: Box<Self>, lost: Option<&End>) -> Option<Parked> {
        let Self {
            mut client,
            session,
            server,
            lent,
            ..
        } = *self;
        let (seat, lent) = lent?;
        let half = if let Some(end) = lost {
            let (client_addr, user) = (client.label.client_addr, &client.label.user);
            tracing::debug!(%client_addr, user, %end, "server connection lost");
            seat.lose();
            if session.has_answered_front() {
                client.discard_front();
            }
            client.discard += server.upstream.rest();
            let (half, answer) = session.lose_server();
            client.put_own(&answer);
            half
        } else {
            let (half, of_server) = session.part().ok()?;
            seat.give_back(&half, lent, of_server, server);
            half
        };
        client.give_back_leases(half.tokens());
        client.collecting.done();
        Some(Parked { client, half, seat })
    }

    /// Ends a session that would keep its lent server connection, when too many are kept.
    pub(super) fn end_unpinned(&mut self, left: Leftover) -> End {
        let detail = format!("It leaves {} in its server connection.", left.as_str());
        self.session.say_fatal(
            "53400",
            "terminating connection because too many clients keep their server connections",
            &detail,
            "Raise backends.pinned, or give the client a rule with pool = \"session\".",
        );
        self.put_output();
        End::Unpinned
    }

    /// Shows for what the client keeps its lent server connection.
    pub(super) fn keep_lent(&mut self, left: Leftover) {
        if self.client.shown.keeps(Some(left)) {
            self.client.worker.tally.pinned(left);
            let (label, leftover) = (&self.client.label, left.as_str());
            tracing::debug!(
                client_addr = %label.client_addr,
                user = label.user,
                leftover,
                "a client keeps its server connection"
            );
        }
    }
}

impl Parked {
    /// A client that has logged in.
    pub(crate) fn new(client: ClientSide, half: Box<ClientHalf>, seat: Seat) -> Self {
        let client = Box::new(client);
        Self { client, half, seat }
    }

    /// Waits for the client's next message, and for a server connection to run it.
    pub(super) async fn next(mut self) -> Option<Box<Relay>> {
        self.client.shown.entry().set_server_pid(None);
        self.client.shown.keeps(None);
        match self.wait().await {
            Ok(borrowed) => Some(self.bind(borrowed)),
            Err(end) => {
                Box::pin(self.finish(end)).await;
                None
            }
        }
    }

    /// Sends the client the proxy's own messages.
    pub(crate) fn say(&mut self, messages: &[u8]) {
        self.client.put_own(messages);
    }

    /// Gets a server connection for the tokens of the startup packet, or ends the client.
    pub(crate) async fn lend(
        mut self,
        declared: &TokenRequest,
        within: Duration,
    ) -> Option<Box<Relay>> {
        let tokens = self.half.wants_for(declared.value()).map(Into::into);
        let timers = self.client.worker.shared.timers.clone();
        let lent = timers.timeout(within, self.lend_or_end(tokens)).await;
        let end = match lent {
            Ok(Ok(Ok(borrowed))) => return Some(self.bind(borrowed)),
            Ok(Ok(Err(error))) => End::NotLent(Box::new(error)),
            Ok(Err(end)) => end,
            Err(_) => End::NotLent(Box::new(OpenError::NoPlace)),
        };
        self.close(end).await;
        None
    }

    /// Waits for a message that needs a server connection, and for that.
    async fn wait(&mut self) -> Result<Borrowed, End> {
        loop {
            self.client
                .shown
                .publish(self.half.activity(), self.half.tokens());
            // Answering leaves others their turn, too.
            coop::consume_budget().await;
            self.message().await?;
            let front = self.client.front();
            let front = front.map_err(|error| Box::new(Ending::ProtocolViolation(error)));
            let front = front.map_err(End::Session)?;
            if front == FrontendTag::Terminate {
                return Err(End::Goodbye);
            }
            // A BEGIN is answered before it reaches the queue, where the gate is looked at again.
            if self.half.activity() == Activity::Idle && self.client.worker.gate.is_shut() {
                let worker = Rc::clone(&self.client.worker);
                let Self { client, half, .. } = self;
                unless_ended(client, half, worker.gate.is_open()).await?;
            }
            let mut answer = BytesMut::new();
            let mut needs = self.half.answer(front, &mut answer);
            if needs == Needs::Server {
                let (message, worker) = self.client.bytes_mut();
                needs = self.half.hold_back(message, &worker.verdicts, &mut answer);
            }
            self.client.put_own(&answer);
            if needs == Needs::Nothing {
                self.client.discard_front();
                continue;
            }
            let tokens = self.tokens();
            match self.lend_or_end(tokens).await? {
                Ok(lent) => return Ok(lent),
                Err(why) if why.is_about_login() => return Err(End::NotLent(Box::new(why))),
                Err(why) => {
                    let mut error = BytesMut::new();
                    why.put(Severity::Error, &mut error);
                    self.half.owe(&error);
                }
            }
        }
    }

    /// Waits for the client's next message.
    async fn message(&mut self) -> Result<(), End> {
        poll_fn(|cx| {
            look_for_end(&mut self.client, &self.half, cx)?;
            self.client.socket.belongs_to(cx);
            self.client.poll_message(cx)
        })
        .await
    }

    /// Waits for a server connection as long as the client stays.
    async fn lend_or_end(
        &mut self,
        tokens: Option<Tokens>,
    ) -> Result<Result<Borrowed, OpenError>, End> {
        let Self { client, half, seat } = self;
        let lending = seat.lend(tokens, half);
        unless_ended(client, half, lending).await
    }

    fn tokens(&self) -> Option<Tokens> {
        let wanted = self
            .half
            .wants(self.client.bytes(), &self.client.worker.verdicts);
        wanted.map(Into::into)
    }

    fn bind(self, (lent, backend, residue): Borrowed) -> Box<Relay> {
        let pid = backend.half.identity().pid();
        self.client.shown.entry().set_server_pid(Some(pid));
        let Self { client, half, seat } = self;
        let session = match residue {
            Residue::None | Residue::Own => Session::lend(half, backend.half),
            Residue::Perhaps => Session::lend_used(half, backend.half, rand::random()),
        };
        Box::new(Relay {
            client,
            session,
            server: backend.side,
            lent: Some((seat, lent)),
            _own_place: None,
            is_woken: false,
        })
    }

    /// Ends a session.
    pub(super) async fn finish(self, end: End) {
        let metrics = &self.client.worker.shared.metrics;
        metrics.session_ended(end.reason());
        self.close(end).await;
    }

    /// Tells the client why it is ended, and closes.
    async fn close(mut self, end: End) {
        // A client that ends waits for no connection.
        drop(self.seat);
        let label = &self.client.label;
        tracing::debug!(client_addr = %label.client_addr, user = label.user, %end, "session ended");
        let mut error = BytesMut::new();
        match &end {
            End::Forced(cause) => {
                let (sqlstate, detail, hint) = cause.advice();
                put_fatal(&mut error, sqlstate, &cause.message(), detail, hint);
            }
            End::Shutdown => put_fatal(&mut error, "57P01", SHUTTING_DOWN, "", "Connect again."),
            End::NotLent(why) => why.put(Severity::Fatal, &mut error),
            End::Session(ending) => {
                if let Ending::ProtocolViolation(violation) = &**ending {
                    put_fatal(&mut error, "08P01", &violation.to_string(), "", "");
                }
            }
            _ => {}
        }
        self.client.put_own(&error);
        let within = match end {
            // It has asked for the answers that wait.
            End::Goodbye | End::ClientLeft => self.client.worker.close_timeout,
            _ => REFUSAL_TIMEOUT,
        };
        if matches!(end, End::Goodbye) {
            self.client.leases.drain(..).for_each(Lease::give_back);
        }
        let timers = self.client.worker.shared.timers.clone();
        let sending = poll_fn(|cx| {
            self.client.socket.belongs_to(cx);
            self.client.poll_sent(cx)
        });
        let _ = timers.timeout(within, sending).await;
        self.client.socket.shut_down_write();
    }
}

/// Waits for something as long as the client stays.
async fn unless_ended<T>(
    client: &mut ClientSide,
    half: &ClientHalf,
    awaited: impl Future<Output = T>,
) -> Result<T, End> {
    let mut awaited = pin!(awaited);
    poll_fn(|cx| {
        // First, because a connection that has been handed over must not be dropped unseen.
        if let Poll::Ready(done) = awaited.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        look_for_end(client, half, cx)?;
        client.poll_leave(cx).map(Err)
    })
    .await
}

/// Looks whether the proxy stops, or an operator or the loss of a lease ends the client.
fn look_for_end(
    client: &mut ClientSide,
    half: &ClientHalf,
    cx: &mut Context<'_>,
) -> Result<(), End> {
    client.ends.register(cx);
    match client.shown.entry().end.cause() {
        Some(cause) => Err(End::Forced(cause)),
        // A transaction ends first.
        None if client.worker.stopping.get() && half.activity() == Activity::Idle => {
            Err(End::Shutdown)
        }
        None => Ok(()),
    }
}
