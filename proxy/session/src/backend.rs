//! Backend messages: where each goes, and what it changes in the session.

use std::sync::Arc;

use pgpalisade_policies::{Control, Statement, WriteReason};

use super::action::Disposition;
use super::endings::{Ending, TERMINATED};
use super::in_flight::{InFlight, Origin, Request};
use super::ledger::ReplyRoute;
use super::lending::Tenancy;
use super::name_change::NameChange;
use super::settings::Settings;
use super::unserved::Block;
use super::{ReadWriteRequest, Session};
use crate::fence::{Pipeline, end_of_failed, ends_transaction};
use crate::rejection::Enforcement;
use crate::rejection::Rejection;
use crate::wire::WireError;
use crate::wire::backend::{self, TransactionStatus, first_column, tag};
use crate::wire::encode::{self, Severity};

/// A cancel request, or a timeout.
const CANCELED: &[u8] = b"57014";

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

    fn on_error(&mut self, body: &[u8]) -> Disposition {
        let fatal = backend::is_fatal(body);
        let sqlstate = backend::error_field(body, b'C').unwrap_or_default();
        let is_refused_block = self.client.block == Block::Entering(TransactionStatus::Failed);
        if fatal && is_refused_block && sqlstate != TERMINATED {
            let message = b"with exit_on_error, no server connection stays in a failed transaction";
            return self.end_for_own_statement(message).into();
        }
        if fatal && (sqlstate == TERMINATED || self.outlives_server()) {
            // The client has sent what a COPY does not accept.
            if sqlstate == b"08P01" {
                encode::put_raw(&mut self.output.to_client, tag::ERROR, body);
                return Ending::ProtocolViolation(WireError::DuringCopy(0)).into();
            }
            return Disposition::Terminated;
        }
        self.client.state.on_error();
        self.doubt_settings();
        self.server.read_only.on_error();
        if self.server.ledger.has_unclear_sync() && !fatal {
            encode::put_raw(&mut self.output.to_client, tag::ERROR, body);
            let error = WireError::DuringCopy(b'S');
            return self.end_for_violation(error).into();
        }
        if sqlstate == CANCELED && self.server.ledger.may_be_skipped() && !fatal {
            encode::put_raw(&mut self.output.to_client, tag::ERROR, body);
            return self.end_for_violation(WireError::WithoutSync).into();
        }
        if self.server.ledger.is_copying_in() {
            // Statements after the COPY in the same query may be ones to wait for.
            self.client.settles = true;
        }
        if sqlstate == b"0A000" {
            self.server.names.distrust_others();
        }
        self.doubt_names(body);
        let front = self.server.ledger.front();
        if front.is_some_and(InFlight::is_unknown_syntax) && !is_refused_by_grammar(body) {
            self.server.note_unknown_syntax();
        }
        let front = self.server.ledger.front();
        let origin = front.map_or(Origin::Client, |front| front.origin);
        let changes = front.map(|front| &front.name);
        if origin == Origin::Client && matches!(changes, Some(NameChange::UnnamedStatement(_))) {
            self.server.names.on_unnamed_failed();
        }
        let is_resetting = self.is_resetting();
        match self.server.ledger.on_reply(tag::ERROR) {
            ReplyRoute::Replace(rejection) => {
                // With exit_on_error, any error is fatal.
                let severity = if fatal {
                    Severity::Fatal
                } else {
                    Severity::Error
                };
                rejection.encode(severity, &mut self.output.to_client);
                self.on_read_write_refused(&rejection);
                Disposition::Drop
            }
            // A fatal error ends the session, whatever it answers.
            _ if fatal => Disposition::Relay,
            ReplyRoute::Relay => {
                if origin == Origin::ParsedAgain {
                    self.on_named_failed();
                }
                Disposition::Relay
            }
            ReplyRoute::Swallow if origin == Origin::Outdated => {
                self.tell_outdated();
                Disposition::Drop
            }
            ReplyRoute::Swallow if is_resetting && self.is_lent() => Ending::ByServer.into(),
            // The client's cancel request hit the guard's statement, which is sent again.
            ReplyRoute::Swallow if sqlstate == CANCELED && self.server.read_only.on_cancelled() => {
                Disposition::Drop
            }
            ReplyRoute::Swallow if matches!(self.client.block, Block::Entering(_)) => {
                Disposition::Drop
            }
            ReplyRoute::Swallow => {
                let message = backend::error_field(body, b'M').unwrap_or_default();
                self.end_for_own_statement(message).into()
            }
        }
    }

    /// Notes that an error answers a statement, and perhaps only the commit after it: of a Query, outside of a block.
    fn doubt_names(&mut self, error: &[u8]) {
        let front = self.server.ledger.front();
        let front = front.filter(|front| front.request == Request::Query);
        let front = front.and_then(InFlight::position);
        let Some((verdict, at)) = front.filter(|(verdict, _)| verdict.has_controls()) else {
            return;
        };
        let is_inside = self.client.state.status() != TransactionStatus::Idle;
        if is_inside || is_of_file(error, &[b"prepare.c"]) {
            return;
        }
        let verdict = Arc::clone(verdict);
        let statement = verdict.statements.get(at);
        let names = &mut self.server.names;
        for control in statement.map_or(&[][..], |statement| &statement.controls) {
            match control {
                Control::Prepare { name, .. } | Control::Deallocate { name } => {
                    names.doubt_named(name);
                }
                control if control.changes_statements() => names.forget_statements(),
                _ => {}
            }
        }
    }

    /// Notes that the open transaction can no longer become read-write. The error that was just sent answers the
    /// client's message.
    fn on_read_write_refused(&mut self, rejection: &Rejection) {
        let prepared = self.prepared.as_mut();
        let Some(prepared) =
            prepared.filter(|prepared| prepared.read_write == ReadWriteRequest::Sent)
        else {
            return;
        };
        prepared.read_write = ReadWriteRequest::Refused;
        // In a pipeline the server skips the rest. Otherwise the proxy's Sync stands for the end of the client's
        // Query.
        if self.client.pipeline == Pipeline::Closed
            && let Some(sync) = self.server.ledger.front_mut()
        {
            sync.origin = Origin::Client;
        }
        self.record(rejection, Enforcement::Refused, None);
    }
}

/// Whether PostgreSQL's grammar has refused a text, of which nothing has run. A function that runs one tells it (`q`),
/// or that it does (`W`).
fn is_refused_by_grammar(error: &[u8]) -> bool {
    is_of_file(error, &[b"gram.y", b"scan.l", b"parser.c"])
}

/// Whether an error comes from such a file of PostgreSQL, and not from inside a function.
fn is_of_file(error: &[u8], files: &[&[u8]]) -> bool {
    let field = |letter| backend::error_field(error, letter);
    let is_of = field(b'F').is_some_and(|file| files.contains(&file));
    is_of && field(b'W').or(field(b'q')).is_none()
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
