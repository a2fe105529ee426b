//! A client between two transactions, without a server connection.

use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use pgpalisade_policies::Leftover;
use pgpalisade_session::endings::put_fatal;

use super::client_side::ClientSide;
use super::{End, REFUSAL_TIMEOUT, Relay};
use crate::backends::OpenError;
use crate::backends::lending::{Lent, Seat};
use crate::client_table::{Cause, Publisher};
use crate::metrics::Metrics;
use crate::pooling::backends::{Backend, Tokens};
use crate::rejection_log::SessionLabel;
use crate::session::{Activity, ClientHalf, Session};
use crate::takeover::Lease;
use crate::transport::Socket;
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
                Self::Bound(relay) => relay.run().await.map(Box::new).map(Self::Parked),
                Self::Parked(parked) => parked.next().await.map(Box::new).map(Self::Bound),
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
    half: ClientHalf,
    client: ClientSide,
    leases: Vec<Lease>,
    seat: Seat,
}

impl Relay {
    /// Parts the client from its lent server connection, and gives that back.
    pub(super) fn park(mut self) -> Option<Parked> {
        let (seat, lent) = self.lent?;
        self.shown.entry().set_server_pid(None);
        self.shown.keeps(None);
        let (half, server) = self.session.part().ok()?;
        seat.give_back(lent, server, self.server, self.tenure);
        Some(Parked {
            worker: self.worker,
            label: self.label,
            shown: self.shown,
            half,
            client: self.client,
            leases: self.leases,
            seat,
        })
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
        half: ClientHalf,
        client: (Socket, BytesMut),
        seat: Seat,
    ) -> Self {
        Self {
            worker: Rc::clone(worker),
            label,
            shown,
            half,
            client: ClientSide::new(client.0, client.1),
            leases: Vec::new(),
            seat,
        }
    }

    fn metrics(&self) -> Metrics {
        self.worker.shared.metrics.clone()
    }

    /// Waits for the client's next message, and for a server connection to run it.
    pub(super) async fn next(mut self) -> Option<Relay> {
        self.shown.publish(Activity::Idle, self.half.tokens());
        match self.wait().await {
            Ok((lent, backend)) => Some(self.bind(lent, backend)),
            Err(end) => {
                self.finish(end).await;
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
    pub(crate) async fn lend(mut self) -> Result<Relay, (Self, OpenError)> {
        match self.seat.lend(self.tokens()).await {
            Ok((lent, backend)) => Ok(self.bind(lent, backend)),
            Err(error) => Err((self, error)),
        }
    }

    async fn wait(&mut self) -> Result<(Lent, Backend), End> {
        let (worker, entry) = (Rc::clone(&self.worker), Arc::clone(self.shown.entry()));
        let ends = async {
            tokio::select! {
                () = worker.drain.cancelled() => End::Shutdown,
                cause = entry.is_to_end() => match cause {
                    Cause::Killed => End::Killed,
                    Cause::LeaseLost => End::LeaseLost,
                },
            }
        };
        tokio::pin!(ends);
        let bytes = std::future::poll_fn(|cx| {
            self.client.socket.belongs_to(cx);
            self.client.poll_message(&self.worker, cx)
        });
        tokio::select! {
            biased;
            end = &mut ends => return Err(end),
            bytes = bytes => bytes?,
        }
        if self.client.says_goodbye() {
            return Err(End::Goodbye);
        }
        let tokens = self.tokens();
        let lending = async {
            worker.gate.is_open().await;
            self.seat.lend(tokens).await
        };
        tokio::select! {
            biased;
            end = &mut ends => Err(end),
            lent = lending => lent.map_err(|why| End::NotLent(Box::new(why))),
        }
    }

    fn tokens(&self) -> Option<Tokens> {
        let tokens = self.half.tokens().filter(|held| held.stale().is_none());
        tokens.map(|held| held.to_string().into())
    }

    fn bind(self, lent: Lent, backend: Backend) -> Relay {
        let pid = backend.half.identity().pid();
        self.shown.entry().set_server_pid(Some(pid));
        Relay {
            session: Session::lend(self.half, backend.half),
            worker: self.worker,
            label: self.label,
            shown: self.shown,
            client: self.client,
            server: backend.side,
            tenure: backend.term,
            leases: self.leases,
            lent: Some((self.seat, lent)),
            _own_place: None,
            end_watch: None,
        }
    }

    async fn finish(mut self, end: End) {
        tracing::debug!(client_addr = %self.label.client_addr, user = self.label.user, %end, "session ended");
        self.worker.shared.metrics.session_ended(end.reason());
        let mut error = BytesMut::new();
        let why = match &end {
            End::Killed => Some("an operator ended it with KILL"),
            End::LeaseLost => Some("its lease could not be renewed in time"),
            End::Shutdown => Some("pgpalisade is shutting down"),
            End::NotLent(why) => {
                why.put_fatal(&mut error);
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
        let sending = std::future::poll_fn(|cx| {
            self.client.socket.belongs_to(cx);
            self.client.poll_sent(&self.worker, cx)
        });
        let _ = timers.timeout(REFUSAL_TIMEOUT, sending).await;
        self.client.socket.shut_down_write();
    }
}
