//! Errors of the server: which request they answer, and what they leave in doubt.

use std::sync::Arc;

use pgpalisade_policies::Control;

use super::action::Disposition;
use super::endings::{Ending, TERMINATED};
use super::in_flight::{InFlight, Origin, Request};
use super::ledger::ReplyRoute;
use super::name_change::NameChange;
use super::unserved::Block;
use super::{ReadWriteRequest, Session};
use crate::fence::Pipeline;
use crate::rejection::{Enforcement, Rejection};
use crate::wire::WireError;
use crate::wire::backend::{self, TransactionStatus, tag};
use crate::wire::encode::{self, Severity};

/// A cancel request, or a timeout.
const CANCELED: &[u8] = b"57014";

impl Session {
    pub(super) fn on_error(&mut self, body: &[u8]) -> Disposition {
        let fatal = backend::is_fatal(body);
        let sqlstate = backend::error_field(body, b'C').unwrap_or_default();
        if fatal && let Some(disposition) = self.on_fatal(sqlstate, body) {
            return disposition;
        }
        self.client.state.on_error();
        self.doubt_settings();
        self.server.read_only.on_error();
        if !fatal && let Some(unclear) = self.unclear_after(sqlstate) {
            encode::put_raw(&mut self.output.to_client, tag::ERROR, body);
            return self.end_for_violation(unclear).into();
        }
        if self.server.ledger.is_copying_in() {
            // Statements after the COPY in the same query may be ones to wait for.
            self.client.settles = true;
        }
        self.doubt_text(sqlstate, body);
        let front = self.server.ledger.front();
        let origin = front.map_or(Origin::Client, |front| front.origin);
        let changes = front.map(|front| &front.name);
        if origin == Origin::Client && matches!(changes, Some(NameChange::UnnamedStatement(_))) {
            self.server.names.on_unnamed_failed();
        }
        if self.server.ledger.is_empty() && self.client.pipeline == Pipeline::Open {
            self.server.ledger.skip_to_sync();
        }
        let is_reset = self.is_own_query();
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
            ReplyRoute::Swallow if is_reset && self.is_lent() => Ending::ByServer.into(),
            ReplyRoute::Swallow => self.on_own_error(sqlstate, body),
        }
    }

    /// An error of a statement of the proxy's own.
    fn on_own_error(&mut self, sqlstate: &[u8], body: &[u8]) -> Disposition {
        let is_cancelled = sqlstate == CANCELED;
        // The client's cancel request hit the guard's statement, which is sent again.
        let is_guard = is_cancelled && self.server.read_only.on_cancelled();
        if is_guard || self.client.block == Block::Entering(TransactionStatus::Failed) {
            return Disposition::Drop;
        }
        // By a limit of time, or a cancel request; or the BEGIN that was held back cannot be had. The connection is
        // lost, and the client told of this error.
        let is_begin = matches!(self.client.block, Block::Entering(_));
        if (is_cancelled || is_begin) && self.outlives_server() {
            return self.end_by_server(body.into()).into();
        }
        let message = backend::error_field(body, b'M').unwrap_or_default();
        self.end_for_own_statement(message).into()
    }

    /// Notes what the failure of a text leaves in doubt.
    fn doubt_text(&mut self, sqlstate: &[u8], error: &[u8]) {
        if sqlstate == b"0A000" {
            self.server.names.distrust_others();
        }
        self.doubt_names(error);
        let front = self.server.ledger.front();
        if front.is_some_and(InFlight::is_unknown_syntax) && !is_refused_by_grammar(error) {
            self.server.note_unknown_syntax();
        }
    }

    /// What follows a fatal error that ends the server connection, and perhaps not its client.
    fn on_fatal(&mut self, sqlstate: &[u8], body: &[u8]) -> Option<Disposition> {
        if sqlstate == TERMINATED {
            return Some(Disposition::Terminated);
        }
        let is_refused_block = self.client.block == Block::Entering(TransactionStatus::Failed);
        if is_refused_block && sqlstate == b"42601" {
            let message = b"with exit_on_error, no server connection stays in a failed transaction";
            return Some(self.end_for_own_statement(message).into());
        }
        if !self.outlives_server() {
            return None;
        }
        // The client has sent what a COPY does not accept.
        if sqlstate == b"08P01" {
            encode::put_raw(&mut self.output.to_client, tag::ERROR, body);
            return Some(Ending::ProtocolViolation(WireError::DuringCopy(0)).into());
        }
        Some(Disposition::Terminated)
    }

    /// Why it is unclear after an error which request the server answers next.
    fn unclear_after(&self, sqlstate: &[u8]) -> Option<WireError> {
        let ledger = &self.server.ledger;
        if ledger.has_unclear_sync() {
            return Some(WireError::DuringCopy(b'S'));
        }
        let may_be_skipped = ledger.front().is_some_and(|front| front.may_be_skipped);
        (sqlstate == CANCELED && may_be_skipped).then_some(WireError::WithoutSync)
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
