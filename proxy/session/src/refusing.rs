//! Refusing a message so that the transaction state which the client sees is PostgreSQL's own.

use super::action::{Action, JudgedText, Refused, Waiting};
use super::in_flight::{InFlight, Request};
use super::{Pipeline, Session, injected};
use crate::rejection::Enforcement;
use crate::rejection::Rejection;
use crate::wire::backend::TransactionStatus;
use crate::wire::encode::{self, Severity};

impl Session {
    /// Refuses the message at the front of the client's bytes. Everything before it was answered.
    pub(super) fn refuse(
        &mut self,
        rejection: Box<Rejection>,
        refused: Refused,
        statement: Option<JudgedText>,
    ) -> Action {
        self.record(&rejection, Enforcement::Refused, statement);
        let rejection = match self.server.status {
            TransactionStatus::Idle => rejection,
            _ => Box::new(rejection.in_transaction()),
        };
        let is_inside = self.is_inside();
        let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
        match refused {
            Refused::Whole if !is_inside => {
                // Nothing reaches the server: an error outside of a transaction changes nothing there.
                let out = &mut self.output.to_client;
                rejection.encode(Severity::Error, out);
                encode::ready_for_query(out, TransactionStatus::Idle);
            }
            Refused::Whole => {
                let sync = InFlight::client(Request::Sync, None);
                injected::refuse(out, ledger, rejection, Some(sync));
                self.client.pipeline = Pipeline::Closed;
                // A token that was set in the pipeline is undone with it.
                self.settle_changes();
            }
            Refused::InPipeline => injected::refuse(out, ledger, rejection, None),
            Refused::CopyData => {
                injected::copy_fail(out, ledger);
                if let Some(copy) = ledger.front_mut() {
                    copy.error = Some(rejection);
                }
            }
        }
        Action::Discard
    }

    /// Puts on record that the login was refused.
    pub fn record_refused_login(&mut self, rejection: &Rejection) {
        self.record(rejection, Enforcement::Refused, None);
    }

    /// Refuses the message that waits for its tokens.
    pub fn refuse_waiting(&mut self, rejection: Box<Rejection>) {
        let prepared = self.prepared.take();
        if let Some(Waiting { refused, statement }) = prepared.and_then(|done| done.waiting) {
            let _ = self.refuse(rejection, refused, statement);
        }
    }
}
