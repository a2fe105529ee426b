//! What must happen before a message of the client can be sent: straight-line code, while the server's messages go on
//! to the client and nothing is read of the client.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::token_grant::Grant;
use super::{End, Relay};
use crate::history;
use crate::rejection::Rejection;
use crate::session::AccessChanged;
use crate::session::action::{Prerequisite, Unread};
use crate::session::read_only::AccessChange;

/// How often it is looked whether a client that waits is still there.
const CLIENT_LOOK_EVERY: Duration = Duration::from_millis(250);

impl Relay {
    /// Sees to it. Behind it the message at the front of the client's bytes is looked at again, unless it was answered.
    pub(super) async fn prepare(&mut self, prerequisite: Prerequisite) -> Result<(), End> {
        match prerequisite {
            Prerequisite::Replies => self.await_replies().await,
            Prerequisite::Verdict(unread) => {
                let Unread { text, encoding } = *unread;
                let classification = self.worker.shared.classification.clone();
                let verdict = self.meanwhile(classification.of(text, encoding)).await?;
                self.session.on_verdict(verdict);
                Ok(())
            }
            Prerequisite::History => {
                let takeover = self.worker.shared.takeover.clone();
                let asking = takeover.history_of(self.session.scopes(), takeover.deadline());
                match self.meanwhile(asking).await? {
                    Ok(takeovers) => self.session.on_history(history::as_json(takeovers)),
                    Err(error) => {
                        self.refuse_front(Box::new(Rejection::history_unavailable(&error)));
                    }
                }
                Ok(())
            }
            Prerequisite::Access(change) => {
                if self.adjust(change).await? == AccessChanged::Refused {
                    self.client.discard_front();
                }
                Ok(())
            }
            Prerequisite::Tokens(wanted, lift) => {
                match self.obtain(&wanted, lift).await? {
                    Grant::Accepted => {}
                    // Another policy may let pass what was to be refused.
                    Grant::Refused(_) if self.follow_policy() => {}
                    Grant::Refused(rejection) => self.refuse_front(rejection),
                    Grant::Answered => self.client.discard_front(),
                }
                Ok(())
            }
        }
    }

    /// Refuses the message at the front of the client's bytes, which has waited.
    fn refuse_front(&mut self, rejection: Box<Rejection>) {
        self.session.refuse_waiting(rejection);
        self.put_output();
        self.client.discard_front();
    }

    /// Waits until everything that was sent has been answered, or the server waits for the data of a COPY.
    pub(super) async fn await_replies(&mut self) -> Result<(), End> {
        self.session.ask_for_replies();
        self.put_output();
        std::future::poll_fn(|cx| {
            self.poll_replies(cx)?;
            match self.session.is_settled() {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            }
        })
        .await
    }

    /// Changes what the server lets the session's transactions do.
    pub(super) async fn adjust(&mut self, change: AccessChange) -> Result<AccessChanged, End> {
        self.session.begin_set_access(change);
        // Should it be cancelled, nothing may stand behind it that relies on it.
        self.await_replies().await?;
        let adjusted = self.session.end_set_access(change);
        adjusted.map_err(|ending| self.ended(ending))
    }

    /// The same as [`Self::meanwhile`] for what may take long, and is of no use once the client has gone, or the proxy
    /// stops.
    pub(super) async fn while_the_client_stays<F: Future>(
        &mut self,
        future: F,
    ) -> Result<F::Output, End> {
        let timers = self.worker.shared.timers.clone();
        let mut future = pin!(future);
        loop {
            let waiting = self.meanwhile(future.as_mut());
            match timers.timeout(CLIENT_LOOK_EVERY, waiting).await {
                Ok(done) => return done,
                Err(_) if self.client.socket.is_closed_by_peer() => return Err(End::ClientLeft),
                Err(_) if self.worker.stopping.get() => return Err(self.end_for_shutdown()),
                Err(_) => {}
            }
        }
    }

    /// Waits for something that is not the session's.
    pub(super) async fn meanwhile<F: Future>(&mut self, future: F) -> Result<F::Output, End> {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            self.poll_replies(cx)?;
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    }
}
