//! Backend messages: where each goes, and what it changes in the session.

use std::sync::Arc;

use pgpalisade_policies::{Control, Statement, WriteReason};

use super::Session;
use super::action::Disposition;
use super::in_flight::{InFlight, Origin, Request};
use super::ledger::ReplyRoute;
use super::lending::Tenancy;
use super::settings::Settings;
use crate::fence::{Pipeline, end_of_failed, ends_transaction};
use crate::wire::backend::{self, TransactionStatus, first_column, tag};

/// The command tag of a SELECT that returned no row.
const NO_ROW: &[u8] = b"SELECT 0";

impl From<ReplyRoute> for Disposition {
    #[inline]
    fn from(reply: ReplyRoute) -> Self {
        match reply {
            ReplyRoute::Relay | ReplyRoute::Replace(_) => Self::Relay,
            ReplyRoute::Swallow => Self::Drop,
        }
    }
}

impl Session {
    /// Whether a backend message must arrive whole: its body matters, or the session may replace it.
    #[inline]
    #[must_use]
    pub fn understands(&self, message: u8) -> bool {
        match message {
            tag::READY_FOR_QUERY | tag::COMMAND_COMPLETE | tag::ERROR | tag::PARAMETER_STATUS => {
                true
            }
            tag::DATA_ROW => self.is_answer() || self.server.ledger.shown_access().is_some(),
            tag::PARAMETER_DESCRIPTION | tag::ROW_DESCRIPTION => {
                self.server.tenancy != Tenancy::ForLife
            }
            _ => false,
        }
    }

    /// Applies one backend message. The session's own messages are left in its output, to be sent ahead of it or in
    /// its place. Always inlined into the loop over the messages, which has more than one caller.
    #[inline(always)]
    pub fn on_backend(&mut self, message: u8, body: &[u8]) -> Disposition {
        match message {
            tag::READY_FOR_QUERY => self.on_ready(body),
            tag::COMMAND_COMPLETE => self.on_command_complete(body),
            tag::ERROR => self.on_error(body),
            tag::PARAMETER_STATUS => self.on_parameter_status(body),
            // Of a channel that another client has listened to.
            tag::NOTIFICATION if self.is_resetting() => Disposition::Drop,
            tag::NOTIFICATION => Disposition::Relay,
            tag::DATA_ROW if self.is_answer() => {
                let pid = first_column(body).unwrap_or_default();
                self.server.read_only.on_answer(pid);
                Disposition::Drop
            }
            tag::DATA_ROW if self.hides_access(body) => Disposition::Drop,
            tag::NOTICE => {
                if self.is_own_reply() {
                    Disposition::Drop
                } else {
                    Disposition::Relay
                }
            }
            other => self.on_other(other, body),
        }
    }

    /// Whether the next reply answers the proxy.
    #[inline]
    pub(super) fn is_own_reply(&self) -> bool {
        let front = self.server.ledger.front();
        front.is_some_and(|front| front.origin != Origin::Client)
    }

    /// Whether a row answers the proxy's query.
    #[inline]
    fn is_answer(&self) -> bool {
        self.server.read_only.is_asking() && self.is_own_reply()
    }

    // Inlined as the loop is: each has one caller, in two copies.
    #[inline(always)]
    fn on_other(&mut self, message: u8, body: &[u8]) -> Disposition {
        if self.is_contradiction(message, &[]) {
            return self.end_for_contradiction(message, &[]).into();
        }
        match message {
            // The portal has run for the rows that were requested.
            tag::PORTAL_SUSPENDED => self.on_statement_ran(&[]),
            tag::PARSE_COMPLETE | tag::BIND_COMPLETE | tag::CLOSE_COMPLETE => {
                if let Some(front) = self.server.ledger.front_mut() {
                    self.server.names.confirm(std::mem::take(&mut front.name));
                }
            }
            tag::PARAMETER_DESCRIPTION | tag::ROW_DESCRIPTION | tag::NO_DATA => {
                self.on_description(message, body);
            }
            _ => {}
        }
        let reply = self.server.ledger.on_reply(message);
        if message == tag::COPY_IN_RESPONSE {
            self.on_copy_in();
        }
        reply.into()
    }

    #[inline(always)]
    fn on_ready(&mut self, body: &[u8]) -> Disposition {
        self.on_own_query_ready();
        let server = &mut self.server;
        let of_client = server.ledger.front();
        let of_client = of_client.filter(|front| front.origin == Origin::Client);
        let is_of_client = of_client.is_some();
        if of_client.is_some_and(|front| front.request == Request::Query) {
            server.names.on_simple_query();
        }
        let reply = server.ledger.on_reply(tag::READY_FOR_QUERY);
        // An unknown status counts as the one that permits least.
        let status = TransactionStatus::from_body(body).unwrap_or(TransactionStatus::Failed);
        self.client.state.on_ready(status);
        server.read_only.on_ready(status);
        if status == TransactionStatus::Idle {
            server.ledger.end_transaction();
            server.names.end_transaction();
            self.client.doubts_name = false;
            self.client.has_queried = false;
            // The client's may be in flight after a statement of the proxy.
            if is_of_client || server.ledger.is_empty() {
                self.adopt_settings();
            }
        }
        if status == TransactionStatus::Idle {
            self.settle_reported();
        }
        let server = &mut self.server;
        server.is_committed_midway = false;
        // By now the server has also reported the settings that it has reset.
        if std::mem::take(&mut server.is_discarded) {
            server.forget_leftover();
        }
        if server.ledger.is_empty() {
            // True also if the Sync was sent during a COPY that had already failed.
            self.client.pipeline = Pipeline::Closed;
        }
        if self.server.read_only.is_untold(self.client.told_access) && !self.is_resetting() {
            self.tell_default_access();
        }
        reply.into()
    }

    #[inline(always)]
    fn on_command_complete(&mut self, body: &[u8]) -> Disposition {
        let command_tag = backend::command_tag(body);
        if self.is_contradiction(tag::COMMAND_COMPLETE, command_tag) {
            return self
                .end_for_contradiction(tag::COMMAND_COMPLETE, command_tag)
                .into();
        }
        self.on_statement_ran(command_tag);
        self.server.ledger.on_reply(tag::COMMAND_COMPLETE).into()
    }

    /// Applies the statement that the next reply is about: it has run to its end, or as far as was requested.
    #[inline]
    fn on_statement_ran(&mut self, command_tag: &[u8]) {
        let front = self.server.ledger.front();
        if front.is_some_and(|front| front.verdict.is_some()) {
            self.on_judged_ran(command_tag);
        }
    }

    fn on_judged_ran(&mut self, command_tag: &[u8]) {
        let Some((verdict, at)) = self.server.ledger.front().and_then(InFlight::position) else {
            return;
        };
        let Some(statement) = verdict.statements.get(at) else {
            return;
        };
        self.server.read_only.on_ran(statement);
        if commits(statement, command_tag, self.client.state.status()) {
            self.server.is_committed_midway = true;
        }
        let is_unknown = matches!(statement.why, Some(WriteReason::Syntax(_)));
        // Without rows, this is the end of a portal whose rows all came before: set_config was called then, and is
        // not again.
        let steers = !statement.controls.is_empty() && command_tag != NO_ROW;
        let verdict = steers.then(|| Arc::clone(verdict));
        if is_unknown {
            self.server.note_unknown_syntax();
        }
        let statement = verdict.as_ref().and_then(|all| all.statements.get(at));
        for control in statement.map_or(&[][..], |statement| &statement.controls) {
            self.on_control(control, command_tag);
        }
    }

    fn on_control(&mut self, control: &Control, command_tag: &[u8]) {
        // COMMIT of a failed transaction rolls it back, and its command tag says so. PREPARE TRANSACTION says so, too,
        // where no transaction block is open: it commits what came before it in the pipeline.
        let is_undone = command_tag == b"ROLLBACK"
            && (matches!(control, Control::Commit { .. }) || self.is_failed());
        let rolled_back = is_undone.then(|| end_of_failed(control));
        let rolled_back = rolled_back.flatten();
        let control = rolled_back.as_ref().unwrap_or(control);
        let (client, server) = (&mut self.client, &mut self.server);
        let accepted = server.registration.accepted();
        client.state.apply(&client.fence, accepted, control);
        if ends_transaction(control) {
            server.ledger.begin_another();
            // If another transaction has begun in the same request, ReadyForQuery does not show this.
            server.names.end_transaction();
        }
        client.discards = client.discards.wrapping_add(control.discards().into());
        match control {
            Control::Commit { .. } | Control::PrepareTransaction => self.adopt_settings(),
            Control::Rollback { .. } => client.settings.drop_pending(),
            Control::RollbackTo(_) => {
                self.doubt_settings();
                self.server.names.on_rollback_to();
            }
            Control::ResetAll => self.on_reset_all(),
            Control::DiscardAll => {
                client.settings = Settings::NONE;
                server.applied = None;
                server.names.deallocated_all();
                server.is_discarded = !server.ledger.runs_more();
            }
            Control::DeallocateAll => server.names.deallocated_all(),
            Control::SetFencing { .. } => server.has_token_text = true,
            Control::MayChangeNames => server.names.forget_statements(),
            Control::Prepare { name, effects } => server.names.prepared(name, effects),
            Control::Deallocate { name } => server.names.deallocated(name),
            _ => {}
        }
    }
}

/// Whether a statement that has completed with this status before it may have committed something, with more of its
/// request to come.
fn commits(statement: &Statement, command_tag: &[u8], before: TransactionStatus) -> bool {
    let ends = |control: &Control| match control {
        Control::Commit { .. } => command_tag != b"ROLLBACK",
        // Outside a transaction block it says ROLLBACK, and commits.
        Control::PrepareTransaction => true,
        _ => false,
    };
    let is_outside = before == TransactionStatus::Idle || statement.is_unread();
    (statement.may_commit_inside && is_outside) || statement.controls.iter().any(ends)
}
