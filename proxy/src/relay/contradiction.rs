//! The end of a session in which the server has done something else than was judged.

use super::Relay;
use crate::session::command_tag;
use crate::session::in_flight::InFlight;
use crate::wire::encode::{ErrorFields, Severity};

impl Relay {
    /// Whether a reply shows that the server has done something else than was judged.
    #[inline]
    pub(super) fn is_contradiction(&self, reply: u8, command_tag: &[u8]) -> bool {
        let contradicts =
            |request: &InFlight| command_tag::contradicts(request, reply, command_tag);
        self.ledger.front().is_some_and(contradicts)
    }

    /// Ends the session on the spot, so that what it has open cannot be committed.
    pub(super) fn on_contradiction(&mut self, reply: u8, command_tag: &[u8]) {
        self.upstream.abort();
        let did = String::from_utf8_lossy(command_tag).into_owned();
        tracing::error!(
            client.addr = %self.label.client_addr,
            user = self.label.user,
            reply = %char::from(reply),
            command_tag = did,
            "PostgreSQL has done something else than the fence has judged: the session is ended"
        );
        self.end_session(
            "a reply contradicts the judgement of its request",
            &ErrorFields {
                severity: Severity::Fatal,
                sqlstate: "58000",
                message: "terminating connection because PostgreSQL has done something else than pgpalisade has judged",
                detail: &format!("The reply {did:?} does not fit the request."),
                hint: "Report this as a defect of pgpalisade, with the statements of the session.",
            },
        );
    }
}
