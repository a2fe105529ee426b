//! Data of a COPY FROM STDIN, and its end.

use super::action::{Action, Prerequisite, Refused};
use super::in_flight::{InFlight, Request};
use super::{Session, Settles};
use crate::fence::{CopyIn, Pipeline};
use crate::wire::frontend::FrontendTag;
use crate::wire::header::Header;

impl Session {
    /// A COPY has begun to read. The server ignores a Sync that was sent behind it, so the pipeline is still open.
    pub(super) fn on_copy_in(&mut self) {
        let ledger = &self.server.ledger;
        let in_pipeline = |request: &InFlight| request.request == Request::Execute;
        if ledger.front().is_some_and(in_pipeline) && ledger.settled().is_some() {
            self.client.pipeline = Pipeline::Open;
            if !self.server.ledger.is_copying_in() {
                // Its data and their end were sent already. The replies to them were thought to come with the answer to
                // that Sync.
                self.ask_for_replies();
            }
        }
    }

    pub(super) fn on_copy_data(&mut self, tag: FrontendTag, message: Header) -> Action {
        let (fence, ledger) = (&self.client.fence, &self.server.ledger);
        let copy = match (ledger.is_copying_in(), ledger.is_empty()) {
            (true, _) => CopyIn::Reading,
            // Data may be sent ahead of the answer to the COPY itself, which was judged.
            (false, true) => CopyIn::None,
            (false, false) => CopyIn::Unknown,
        };
        match fence.admit_copy_data(message, copy, self.client.variables.token()) {
            Ok(Some(permit)) => {
                if tag == FrontendTag::CopyDone && copy != CopyIn::Unknown {
                    // What stands behind the COPY in its text is answered before anything else is decided.
                    self.client.settles = Settles::Yes;
                }
                self.forward(permit, Self::copy_end(tag))
            }
            Ok(None) => Action::Need(Prerequisite::Replies),
            Err(rejection) => self.refuse(rejection, Refused::CopyData, None),
        }
    }

    fn copy_end(tag: FrontendTag) -> Option<InFlight> {
        (tag == FrontendTag::CopyDone).then(|| InFlight::client(Request::CopyEnd, None))
    }
}
