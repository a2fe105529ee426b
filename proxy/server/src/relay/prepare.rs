//! Steps that must happen before a client message can be sent. They are straight-line code; meanwhile the server's
//! messages are relayed and the client is not read.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::{End, Relay};
use crate::backends::reset::RESET_WITHIN;
use crate::history;
use crate::metrics::Outcome;
use crate::rejection::Rejection;
use crate::session::Met;
use crate::session::action::{Action, Prerequisite, Unread};
use crate::session::lost_server::Step;
use crate::session::read_only::AccessChange;

/// Interval of the checks whether a waiting client is still there.
const CLIENT_LOOK_EVERY: Duration = Duration::from_millis(250);

/// Time in which PostgreSQL answers what a client has sent before it left.
const LEFT_MAX: Duration = Duration::from_secs(5);

impl Relay {
    /// Carries it out. The message at the front of the client's bytes is then decided again, unless it was answered.
    pub(super) async fn prepare(&mut self, prerequisite: Prerequisite) -> Result<(), End> {
        match self.meet(prerequisite).await? {
            Met::Yes => {}
            Met::Refused(rejection) => {
                self.session.refuse_waiting(rejection);
                self.put_output();
                self.client.discard_front();
            }
            Met::Answered => self.client.discard_front(),
        }
        Ok(())
    }

    /// Takes the server connection to where the client believes to be.
    pub(super) async fn resume(&mut self) -> Result<(), End> {
        self.follow_policy();
        loop {
            let step = self.session.resume(&self.client.worker.verdicts);
            self.put_output();
            match step {
                Step::Done | Step::Decided(Action::Discard) => return Ok(()),
                Step::Decided(Action::Need(prerequisite)) => {
                    // Boxed because it is large, and rarely needed.
                    let met = Box::pin(self.meet(prerequisite)).await?;
                    if let Met::Refused(rejection) = met {
                        self.session.refuse_waiting(rejection);
                        self.put_output();
                        return Ok(());
                    }
                }
                Step::Send(permit, message) => {
                    self.server.upstream.admit(permit);
                    let sent = self.server.upstream.forward(&message);
                    sent.map_err(End::ServerSocket)?;
                    self.await_replies().await?;
                }
                Step::Decided(Action::End(ending)) => return Err(self.ended(ending)),
                // Nothing else is decided on a whole Query.
                Step::Decided(_) => return Err(End::ServerClosed),
            }
        }
    }

    async fn meet(&mut self, prerequisite: Prerequisite) -> Result<Met, End> {
        match prerequisite {
            Prerequisite::Replies => self.await_replies().await?,
            Prerequisite::Verdict(unread) => {
                let Unread { text, encoding } = *unread;
                let classification = self.client.worker.shared.classification.clone();
                let verdict = self.meanwhile(classification.of(text, encoding)).await?;
                self.session.on_verdict(verdict);
            }
            Prerequisite::History => {
                let takeover = self.client.worker.shared.takeover.clone();
                let asking = takeover.history_of(self.session.scopes(), takeover.deadline());
                match self.meanwhile(asking).await? {
                    Ok(takeovers) => self.session.on_history(history::as_json(takeovers)),
                    Err(error) => {
                        let rejection = Rejection::history_unavailable(&error);
                        return Ok(Met::Refused(Box::new(rejection)));
                    }
                }
            }
            Prerequisite::Access(change) => return self.set_access(change).await,
            Prerequisite::Tokens(wanted, read_write) => {
                return match self.obtain(&wanted, read_write).await? {
                    // The new policy may admit the message.
                    Met::Refused(_) if self.follow_policy() => Ok(Met::Yes),
                    met => Ok(met),
                };
            }
        }
        Ok(Met::Yes)
    }

    /// Waits until everything sent has been answered, or the server waits for COPY data.
    pub(super) async fn await_replies(&mut self) -> Result<(), End> {
        self.session.ask_for_replies();
        self.put_output();
        let mut left_at = None;
        std::future::poll_fn(|cx| {
            self.poll_replies(cx)?;
            if self.session.is_settled() {
                return Poll::Ready(Ok(()));
            }
            // A lease waits for no statement of a client that is gone.
            let is_awaited = self.lent.is_some() || !self.client.leases.is_empty();
            if is_awaited && self.has_left(&mut left_at, cx) {
                return Poll::Ready(Err(End::ClientLeft));
            }
            Poll::Pending
        })
        .await
    }

    /// Whether the client has left so long ago that others may have its server connection.
    fn has_left(&mut self, at: &mut Option<Instant>, cx: &mut Context<'_>) -> bool {
        if self.client.poll_closed(cx).is_pending() {
            return false;
        }
        at.get_or_insert_with(Instant::now).elapsed() >= LEFT_MAX
    }

    /// Waits until the lent server connection is reset. If that fails, it counts as lost: of the client nothing was
    /// sent.
    pub(super) async fn await_reset(&mut self) -> Result<(), End> {
        let timers = self.client.worker.shared.timers.clone();
        let reset = timers.timeout(RESET_WITHIN, self.await_replies()).await;
        let reset = reset.unwrap_or(Err(End::ServerClosed));
        self.client.worker.tally.reset(match reset {
            Ok(()) => Outcome::Done,
            Err(_) => Outcome::Failed,
        });
        reset
    }

    /// Changes what the session's transactions may do at the server.
    pub(super) async fn set_access(&mut self, change: AccessChange) -> Result<Met, End> {
        self.session.begin_set_access(change);
        // If it is cancelled, nothing that relies on it may follow.
        self.await_replies().await?;
        let met = self.session.end_set_access(change);
        met.map_err(|ending| self.ended(ending))
    }

    /// Like [`Self::meanwhile`], for slow work that is abandoned if the client leaves or the proxy stops.
    pub(super) async fn while_the_client_stays<F: Future>(
        &mut self,
        future: F,
    ) -> Result<F::Output, End> {
        let worker = Rc::clone(&self.client.worker);
        let (timers, ending) = (&worker.shared.timers, &worker.shared.ending);
        let mut future = pin!(future);
        loop {
            let waiting = self.meanwhile(future.as_mut());
            let waited = tokio::select! {
                biased;
                // First: a lease that a session of another worker gives back as it ends is for another proxy.
                () = ending.drain.cancelled() => None,
                waited = timers.timeout(CLIENT_LOOK_EVERY, waiting) => Some(waited),
            };
            match waited {
                Some(Ok(done)) => return done,
                Some(Err(_)) if self.client.socket.is_closed_by_peer() => {
                    return Err(End::ClientLeft);
                }
                Some(Err(_)) => {}
                None => return Err(self.end_for_shutdown()),
            }
        }
    }

    /// Waits for something outside the session.
    pub(super) async fn meanwhile<F: Future>(&mut self, future: F) -> Result<F::Output, End> {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            self.poll_replies(cx)?;
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    }
}
