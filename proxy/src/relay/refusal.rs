//! Refusing a message so that the transaction state which the client sees is PostgreSQL's own.

use bytes::BytesMut;

use super::judgement::LastJudged;
use super::steps::Refused;
use super::{CommittedMidway, End, Gate, Relay};
use crate::fence::Binding;
use crate::rejection::Rejection;
use crate::rejection_log::{Enforcement, RejectionKind};
use crate::session::Pipeline;
use crate::session::in_flight::{InFlight, Request};
use crate::upstream::own;
use crate::wire::backend::TransactionStatus;
use crate::wire::encode::{self, Severity};

impl Relay {
    /// Refuses the message at the front of the client's bytes. Everything before it was answered.
    pub(super) fn refuse(&mut self, rejection: Box<Rejection>, refused: Refused) {
        self.record(&rejection, Enforcement::Refused);
        match refused {
            Refused::Whole if !self.position.is_inside() => {
                // Nothing reaches the server: an error outside of a transaction changes nothing there.
                let out = self.client_outbox.tail();
                rejection.encode(Severity::Error, out);
                encode::ready_for_query(out, TransactionStatus::Idle);
            }
            Refused::Whole => {
                let sync = InFlight::client(Request::Sync, None);
                own::refuse(
                    self.upstream.own_messages(),
                    &mut self.ledger,
                    rejection,
                    Some(sync),
                );
                self.position.pipeline = Pipeline::Closed;
            }
            Refused::InPipeline => {
                own::refuse(
                    self.upstream.own_messages(),
                    &mut self.ledger,
                    rejection,
                    None,
                );
            }
            Refused::CopyData => {
                own::copy_fail(self.upstream.own_messages(), &mut self.ledger);
                if let Some(copy) = self.ledger.front_mut() {
                    copy.error = Some(rejection);
                }
            }
        }
    }

    /// The server has closed the connection. A session that a takeover has ended is told so.
    pub(super) fn on_server_closed(&mut self, end: End) -> Result<(), End> {
        let in_flight = !self.ledger.is_empty();
        let last_words = self.last_words.take();
        if last_words.is_some() && self.end_if_taken_over() {
            return Ok(());
        }
        match (self.ended_by_takeover(), last_words) {
            (Some((scope, token, mark)), None) => {
                let rejection = match in_flight {
                    // The socket just died: whether the last statement was committed, nobody here knows.
                    true => Rejection::outcome_unknown(&scope, token, mark),
                    false => Rejection::session_ended(&scope, token, mark),
                };
                self.end_by_takeover(&rejection);
            }
            (_, Some(words)) => {
                self.client_outbox.tail().extend_from_slice(&words);
                self.gate = Gate::Closing("the server ended the session");
            }
            (None, None) => {
                if self.client_outbox.is_done(&self.client) {
                    return Err(end);
                }
                self.gate = Gate::Closing("the server closed the connection");
            }
        }
        Ok(())
    }

    /// The server says that an administrator has ended the session. Where that was a takeover, the client is told.
    /// Where no takeover is known, what the server said waits until it closes its side, which it does next: a
    /// takeover through another proxy may become known in between.
    pub(super) fn on_terminated(&mut self, body: &[u8]) {
        if !self.end_if_taken_over() {
            let mut words = BytesMut::new();
            encode::error_response_as_sent(&mut words, body);
            self.last_words = Some(words);
        }
    }

    /// Tells a client whose session the server has ended that it was a takeover, where it was. Says whether it was.
    ///
    /// In the place of a completion it means that the transaction was aborted: a server process that
    /// has committed completes first. Work that may commit before it completes is another matter.
    fn end_if_taken_over(&mut self) -> bool {
        let Some((scope, token, mark)) = self.ended_by_takeover() else {
            return false;
        };
        let certain = self.committed_midway == CommittedMidway::No
            && !self.ledger.iter().any(may_have_committed);
        let rejection = match certain {
            true => Rejection::session_ended(&scope, token, mark),
            false => Rejection::outcome_unknown(&scope, token, mark),
        };
        self.end_by_takeover(&rejection);
        true
    }

    fn end_by_takeover(&mut self, rejection: &Rejection) {
        self.record(rejection, Enforcement::Refused);
        rejection.encode(Severity::Fatal, self.client_outbox.tail());
        self.gate = Gate::Closing(match rejection.kind {
            RejectionKind::OutcomeUnknown => "ended by a takeover, outcome unknown",
            _ => "ended by a takeover",
        });
    }

    /// A token of the session that a takeover has made stale, where that ends sessions.
    fn ended_by_takeover(
        &mut self,
    ) -> Option<(
        pgpalisade_authority::Scope,
        pgpalisade_authority::Token,
        pgpalisade_authority::Mark,
    )> {
        self.follow_policy();
        let fence = &self.fence;
        let ends = |binding: &&Binding| fence.ends_sessions(binding);
        let bindings = self.accepted.iter().flat_map(|held| held.bindings());
        let (binding, mark) = bindings
            .filter(ends)
            .find_map(|binding| Some((binding, binding.cell.mark_above(binding.token)?)))?;
        Some((binding.cell.scope().clone(), binding.token, mark))
    }

    pub(super) fn record(&mut self, rejection: &Rejection, enforcement: Enforcement) {
        let LastJudged { class, text } = std::mem::take(&mut self.judged);
        let rejections = &self.worker.rejections;
        let text = (!text.is_empty()).then(|| rejections.statement(&text));
        rejections.record(rejection.record(&self.label, class, text, enforcement));
    }
}

fn may_have_committed(entry: &InFlight) -> bool {
    entry
        .verdict
        .as_ref()
        .is_some_and(|verdict| verdict.commits_midway())
}
