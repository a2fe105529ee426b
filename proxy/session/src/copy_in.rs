//! Data of a COPY FROM STDIN, and its end.

use super::Session;
use super::action::{Action, Prerequisite, Refused};
use super::in_flight::{InFlight, Request};
use crate::fence::Pipeline;
use crate::wire::frontend::FrontendTag;
use crate::wire::header::Header;

impl Session {
    /// Notes that a COPY has begun to read. The server ignores a Sync that was sent after it, so the pipeline is
    /// still open, and no ReadyForQuery will report what triggers set.
    pub(super) fn on_copy_in(&mut self) {
        let ledger = &self.server.ledger;
        let in_pipeline = |request: &InFlight| request.request == Request::Execute;
        if ledger.front().is_some_and(in_pipeline) && ledger.settled().is_some() {
            self.client.pipeline = Pipeline::Open;
            self.server.text_settings.on_run();
        }
    }

    /// Decides COPY data and their end. Before the reply to the COPY they wait: only it shows whether the server
    /// takes what comes next for data or for a request.
    ///
    /// PostgreSQL ignores them outside of a COPY, unless a `statement_timeout` is due: its error, which drops the
    /// message that was read last, would count as the reply to another request.
    pub(super) fn on_copy_message(&mut self, tag: FrontendTag, message: Header) -> Action {
        let (fence, ledger) = (&self.client.fence, &mut self.server.ledger);
        match (ledger.is_copying_in(), ledger.is_empty()) {
            (true, _) => {}
            (false, true) => return Action::Discard,
            (false, false) => return Action::Need(Prerequisite::Replies),
        }
        if tag == FrontendTag::CopyData {
            ledger.on_copy_data();
        } else {
            ledger.end_copy_in();
            // The rest of the query after the COPY is answered before anything else is decided.
            self.client.settles = true;
        }
        if tag == FrontendTag::CopyFail {
            return self.forward_harmless(message, None);
        }
        match fence.admit_copy_data(message, self.client.state.token()) {
            Ok(permit) => self.forward(permit, None),
            Err(rejection) => self.refuse(rejection, Refused::CopyData, None),
        }
    }
}
