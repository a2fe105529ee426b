//! Refusal of a message, with the transaction state that PostgreSQL itself would be in.

use super::action::{Action, JudgedText, RecordedRefusal, Refused, Waiting};
use super::in_flight::{InFlight, Request};
use super::unserved::Block;
use super::{Pipeline, Session, injected};
use crate::rejection::Enforcement;
use crate::rejection::Rejection;
use crate::wire::backend::TransactionStatus;
use crate::wire::encode::{self, ReadyForQuery, Severity};

impl Session {
    /// Records a refusal.
    pub(super) fn record(
        &mut self,
        rejection: &Rejection,
        enforcement: Enforcement,
        statement: Option<JudgedText>,
    ) {
        self.output.refusals.push(RecordedRefusal {
            rejection: rejection.clone(),
            enforcement,
            statement,
        });
    }

    /// Refuses the message at the front of the client's bytes. All before it were answered.
    pub(super) fn refuse(
        &mut self,
        rejection: Box<Rejection>,
        refused: Refused,
        statement: Option<JudgedText>,
    ) -> Action {
        self.record(&rejection, Enforcement::Refused, statement);
        let rejection = match self.client.state.status() {
            TransactionStatus::Idle => rejection,
            _ => Box::new(rejection.in_transaction()),
        };
        if matches!(self.client.block, Block::Begun(_)) {
            self.refuse_held(&rejection);
            return Action::Discard;
        }
        let is_inside = self.is_inside();
        let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
        match refused {
            Refused::Whole if !is_inside => {
                // Nothing reaches the server: outside a transaction, an error changes nothing there.
                let out = &mut self.output.to_client;
                rejection.encode(Severity::Error, out);
                encode::put(out, &ReadyForQuery::new(TransactionStatus::Idle.into()));
            }
            Refused::Whole => {
                let sync = InFlight::client(Request::Sync, None);
                injected::refuse(out, ledger, rejection, Some(sync));
                self.client.pipeline = Pipeline::Closed;
                // The error also undoes a token that was set in the pipeline.
                self.settle_changes();
            }
            Refused::InPipeline => {
                injected::refuse(out, ledger, rejection, None);
                // The message may be the first of its pipeline.
                self.client.pipeline = Pipeline::Open;
            }
            Refused::CopyData => {
                injected::copy_fail(out, ledger);
                if let Some(copy) = ledger.front_mut() {
                    copy.error = Some(rejection);
                }
            }
        }
        Action::Discard
    }

    /// Records that the login was refused.
    pub fn record_refused_login(&mut self, rejection: &Rejection) {
        self.record(rejection, Enforcement::Refused, None);
    }

    /// Refuses the message whose tokens are being declared.
    pub fn refuse_waiting(&mut self, rejection: Box<Rejection>) {
        let prepared = self.prepared.take();
        if let Some(Waiting { refused, statement }) = prepared.and_then(|done| done.waiting) {
            let _ = self.refuse(rejection, refused, statement);
        }
    }
}
