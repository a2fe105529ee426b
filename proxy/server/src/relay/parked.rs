//! A client between two transactions, without a server connection.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::BytesMut;
use pgpalisade_policies::Leftover;
use pgpalisade_pool::Residue;
use pgpalisade_session::endings::put_fatal;

use super::client_side::ClientSide;
use super::{End, REFUSAL_TIMEOUT, Relay, client_ends};
use crate::backends::OpenError;
use crate::backends::lending::{Borrowed, Seat};
use crate::client_table::Publisher;
use crate::end_watch::EndWatch;
use crate::leadership::{LEAD_GAINED, Loss};
use crate::metrics::Metrics;
use crate::pooling::backends::Tokens;
use crate::rejection_log::SessionLabel;
use crate::session::unserved::Needs;
use crate::session::{Activity, ClientHalf, Session};
use crate::takeover::Lease;
use crate::transport::Socket;
use crate::wire::encode::Severity;
use crate::wire::frontend::FrontendTag;
use crate::worker::Worker;

/// A client's session, with a server connection or between two.
pub(crate) enum Served {
    Bound(Box<Relay>),
    Parked(Box<Parked>),
}

impl Served {
    /// Runs the session to its end.
    pub(crate) async fn run(mut self) {
        let metrics = match &self {
            Self::Bound(relay) => relay.worker.shared.metrics.clone(),
            Self::Parked(parked) => parked.metrics(),
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
    worker: Rc<Worker>,
    label: Arc<SessionLabel>,
    shown: Publisher,
    half: Box<ClientHalf>,
    client: Box<ClientSide>,
    leases: Vec<Lease>,
    seat: Seat,
    ends: EndWatch,
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
        let is_midway = self.server.upstream.rest() > 0 || self.client.has_message();
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

    /// Parts the client from its lent server connection, and gives that back, unless it was lost.
    pub(super) fn park(self: Box<Self>, lost: Option<&End>) -> Option<Box<Parked>> {
        let Self {
            worker,
            label,
            shown,
            session,
            mut client,
            server,
            leases,
            lent,
            ends,
            ..
        } = *self;
        let (seat, lent) = lent?;
        let half = if let Some(end) = lost {
            let (client_addr, user) = (label.client_addr, &label.user);
            tracing::debug!(%client_addr, user, %end, "server connection lost");
            seat.lose();
            client.discard_rest(server.upstream.rest());
            let (half, answer) = session.lose_server();
            client.put_own(&answer);
            half
        } else {
            let (half, of_server) = session.part().ok()?;
            seat.give_back(lent, of_server, server);
            half
        };
        Some(Box::new(Parked {
            worker,
            label,
            shown,
            half,
            client,
            leases,
            seat,
            ends,
        }))
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
        if self.shown.keeps(Some(left)) {
            self.worker.tally.pinned(left);
            let (label, leftover) = (&self.label, left.as_str());
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
    pub(crate) fn new(
        worker: &Rc<Worker>,
        label: Arc<SessionLabel>,
        shown: Publisher,
        half: Box<ClientHalf>,
        client: (Socket, BytesMut),
        seat: Seat,
    ) -> Self {
        Self {
            worker: Rc::clone(worker),
            ends: client_ends(worker, &shown),
            label,
            shown,
            half,
            client: Box::new(ClientSide::new(client.0, client.1)),
            leases: Vec::new(),
            seat,
        }
    }

    fn metrics(&self) -> Metrics {
        self.worker.shared.metrics.clone()
    }

    /// Waits for the client's next message, and for a server connection to run it.
    pub(super) async fn next(mut self: Box<Self>) -> Option<Box<Relay>> {
        self.shown.entry().set_server_pid(None);
        self.shown.keeps(None);
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

    /// Ends a session that has not begun.
    pub(crate) async fn refuse(self, error: OpenError) {
        self.finish(End::NotLent(Box::new(error))).await;
    }

    /// Gets a server connection for the tokens of the startup packet.
    pub(crate) async fn lend(mut self: Box<Self>) -> Result<Box<Relay>, (Box<Self>, OpenError)> {
        let tokens = self.tokens();
        match self.seat.lend(tokens, self.half.settings()).await {
            Ok(borrowed) => Ok(self.bind(borrowed)),
            Err(error) => Err((self, error)),
        }
    }

    /// Waits for a message that needs a server connection, and for that.
    async fn wait(&mut self) -> Result<Borrowed, End> {
        loop {
            self.shown.publish(self.half.activity(), self.half.tokens());
            self.message().await?;
            let front = self.client.front();
            if matches!(front, Ok(FrontendTag::Terminate)) {
                return Err(End::Goodbye);
            }
            if let Ok(tag) = front {
                let mut answer = BytesMut::new();
                let mut needs = self.half.answer(tag, &mut answer);
                if needs == Needs::Server {
                    let (message, verdicts) = (self.client.bytes(), &self.worker.verdicts);
                    needs = self.half.hold_back(message, verdicts, &mut answer);
                }
                if needs == Needs::Nothing {
                    self.client.put_own(&answer);
                    self.client.discard_front();
                    continue;
                }
            }
            match self.lend_or_end().await? {
                Ok(lent) => return Ok(lent),
                // The message would end any session.
                Err(why) if front.is_err() => return Err(End::NotLent(Box::new(why))),
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
        let worker = Rc::clone(&self.worker);
        poll_fn(|cx| {
            self.ends.register(cx);
            look_for_end(&worker, &self.shown, &self.half)?;
            self.client.socket.belongs_to(cx);
            self.client.poll_message(&worker, cx)
        })
        .await
    }

    /// Waits for a server connection as long as the client stays.
    async fn lend_or_end(&mut self) -> Result<Result<Borrowed, OpenError>, End> {
        let tokens = self.tokens();
        let Self {
            worker,
            shown,
            half,
            client,
            seat,
            ends,
            ..
        } = self;
        let is_idle = half.activity() == Activity::Idle;
        let lending = async {
            // A transaction goes on.
            if is_idle {
                worker.gate.is_open().await;
            }
            seat.lend(tokens, half.settings()).await
        };
        let mut lending = pin!(lending);
        poll_fn(|cx| {
            ends.register(cx);
            look_for_end(worker, shown, half)?;
            match lending.as_mut().poll(cx) {
                Poll::Ready(lent) => Poll::Ready(Ok(lent)),
                Poll::Pending => client.poll_leave(worker, cx).map(Err),
            }
        })
        .await
    }

    fn tokens(&self) -> Option<Tokens> {
        let wanted = self.half.wants(self.client.bytes(), &self.worker.verdicts);
        wanted.map(Into::into)
    }

    fn bind(self: Box<Self>, (lent, backend, residue): Borrowed) -> Box<Relay> {
        let pid = backend.half.identity().pid();
        self.shown.entry().set_server_pid(Some(pid));
        let Self {
            worker,
            label,
            shown,
            half,
            client,
            leases,
            seat,
            ends,
        } = *self;
        let session = match residue {
            Residue::None => Session::lend(half, backend.half),
            Residue::Perhaps => {
                let reset = backend.reset();
                Session::lend_used(half, backend.half, reset)
            }
        };
        Box::new(Relay {
            session,
            worker,
            label,
            shown,
            client,
            server: backend.side,
            leases,
            lent: Some((seat, lent)),
            _own_place: None,
            ends,
            is_woken: false,
        })
    }

    async fn finish(mut self, end: End) {
        // A client that ends waits for no connection.
        drop(self.seat);
        tracing::debug!(client_addr = %self.label.client_addr, user = self.label.user, %end, "session ended");
        self.worker.shared.metrics.session_ended(end.reason());
        let mut error = BytesMut::new();
        let why = match &end {
            End::Killed => Some("an operator ended it with KILL"),
            End::LeaseLost => Some("its lease could not be renewed in time"),
            End::LeadGained => Some(LEAD_GAINED),
            End::Shutdown => Some("pgpalisade is shutting down"),
            End::TermEnded(loss) => {
                put_fatal(&mut error, "PF001", Loss::MESSAGE, loss.why(), Loss::HINT);
                None
            }
            End::NotLent(why) => {
                why.put(Severity::Fatal, &mut error);
                None
            }
            _ => None,
        };
        if let Some(why) = why {
            let message = format!("terminating connection because {why}");
            put_fatal(&mut error, "57P01", &message, "", "Connect again.");
        }
        self.client.put_own(&error);
        if matches!(end, End::Goodbye) {
            self.leases.drain(..).for_each(Lease::give_back);
        }
        let timers = self.worker.shared.timers.clone();
        let sending = poll_fn(|cx| {
            self.client.socket.belongs_to(cx);
            self.client.poll_sent(&self.worker, cx)
        });
        let _ = timers.timeout(REFUSAL_TIMEOUT, sending).await;
        self.client.socket.shut_down_write();
    }
}

/// Looks whether the proxy stops, or an operator or the loss of a lease ends the client.
fn look_for_end(worker: &Worker, shown: &Publisher, half: &ClientHalf) -> Result<(), End> {
    match shown.entry().cause() {
        Some(cause) => Err(cause.into()),
        // A transaction ends first.
        None if worker.stopping.get() && half.activity() == Activity::Idle => Err(End::Shutdown),
        None => Ok(()),
    }
}
