//! Data of a COPY FROM STDIN, and its end.

use super::requests::behind_copy;
use super::steps::{Forward, Refused, Step};
use super::{Gate, Relay};
use crate::fence::Guard;
use crate::session::Pipeline;
use crate::session::in_flight::{InFlight, Request};
use crate::wire::frontend::FrontendTag;

impl Relay {
    /// A COPY has begun to read. The server ignores a Sync that was sent behind it, so the pipeline is still open.
    pub(super) fn on_copy_in(&mut self) {
        let in_pipeline = |request: &InFlight| request.request == Request::Execute;
        if self.ledger.front().is_some_and(in_pipeline) && self.ledger.settled().is_some() {
            self.position.pipeline = Pipeline::Open;
            self.guard = Guard::InDoubt;
            if matches!(self.gate, Gate::Replies) {
                // They were thought to come with the answer to that Sync.
                self.await_replies();
            }
        }
    }

    pub(super) fn look_at_copy_data(&self, tag: FrontendTag) -> Step {
        let entry =
            (tag == FrontendTag::CopyDone).then(|| InFlight::client(Request::CopyEnd, None));
        let fence = &self.fence;
        let permit = match self.ledger.is_copying_in() {
            true => fence.admit_copy_data(self.settings.token()),
            // Data may be sent ahead of the answer to the COPY itself, which was judged.
            false if self.ledger.is_empty() => Ok(fence.admit_ignored_data()),
            false => return self.copy_data_ahead(entry),
        };
        match permit {
            Ok(permit) if tag == FrontendTag::CopyDone => {
                behind_copy(Step::Forward(Forward::plain(permit, entry)))
            }
            Ok(permit) => Step::Forward(Forward::plain(permit, entry)),
            Err(rejection) => Step::Refuse(rejection, Refused::CopyData),
        }
    }

    fn copy_data_ahead(&self, entry: Option<InFlight>) -> Step {
        match self.fence.admit_any(self.settings.token()) {
            Some(permit) => Step::Forward(Forward::plain(permit, entry)),
            None => Step::AwaitReplies,
        }
    }
}
