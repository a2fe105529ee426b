//! Messages from the server: where each of them goes, and what it tells about the session.

use std::sync::Arc;

use pgpalisade_policies::{Access, Chain, CommitsInside, Control, Statement};

use super::progress::reported_access;
use super::{CommittedMidway, End, Gate, Relay};
use crate::fence::Guard;
use crate::session::Pipeline;
use crate::session::access::{self, DEFAULT_READ_ONLY, IN_HOT_STANDBY, Recovery, value};
use crate::session::in_flight::{InFlight, Origin, Request};
use crate::session::ledger::Reply;
use crate::wire::backend::{self, TransactionStatus, first_column, tag};
use crate::wire::encode::{self, Severity};
use crate::wire::header::{self, HEADER_LEN, Header};

/// Messages that the proxy understands are collected up to this size; longer ones (an error with a
/// huge field) pass by their header.
const UNDERSTOOD_MAX: usize = 64 * 1024;

/// The command tag of a SELECT that returned no row.
const NO_ROW: &[u8] = b"SELECT 0";

/// The rest of a message whose head was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Rest {
    /// No message is incomplete.
    #[default]
    None,
    /// So many bytes are the client's.
    Relay(usize),
    /// So many bytes are nobody's.
    Drop(usize),
}

/// Where one message goes.
enum Way {
    Relay,
    Drop,
}

impl Relay {
    /// Looks at what the server has sent and says how many bytes are done with.
    pub(super) fn on_server_bytes(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let (mut at, mut sent) = (0, 0);
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            if self.server_rest != Rest::None {
                let way = std::mem::take(&mut self.server_rest);
                at += self.relay_rest(way, bytes, &mut sent, at)?;
                match self.server_rest {
                    Rest::None => continue,
                    Rest::Relay(_) | Rest::Drop(_) => break,
                }
            }
            let header = match header::parse(rest, backend::body_max) {
                Ok(Some(header)) => header,
                Ok(None) => break,
                Err(error) => return Err(End::ServerSocket(std::io::Error::other(error))),
            };
            let body = rest
                .get(HEADER_LEN..rest.len().min(header.frame_len()))
                .unwrap_or_default();
            let is_understood = self.is_understood(header.tag);
            if body.len() < header.body_len && is_understood && header.body_len <= UNDERSTOOD_MAX {
                break;
            }
            let queued = self.client_outbox.waiting();
            let way = self.on_message(header, body);
            if self.client_outbox.waiting() > queued {
                // What the message made the proxy say stands behind everything before it.
                let own = self.client_outbox.tail().split_off(queued);
                self.relay(bytes, sent, at)?;
                self.client_outbox.tail().extend_from_slice(&own);
                sent = at;
            }
            let rest = match way {
                Way::Relay => Rest::Relay(header.frame_len()),
                Way::Drop => Rest::Drop(header.frame_len()),
            };
            at += self.relay_rest(rest, bytes, &mut sent, at)?;
            if matches!(self.gate, Gate::Closing(_)) {
                self.relay(bytes, sent, at)?;
                return Ok(bytes.len());
            }
        }
        self.relay(bytes, sent, at)?;
        self.on_lifted();
        Ok(at)
    }

    /// What is left of a message, as far as it is here: says how many bytes that is. What is here is relayed with what
    /// follows it, or is dropped behind what came before it.
    #[inline]
    fn relay_rest(
        &mut self,
        rest: Rest,
        bytes: &[u8],
        sent: &mut usize,
        at: usize,
    ) -> Result<usize, End> {
        let here = bytes.len() - at;
        match rest {
            Rest::None => Ok(0),
            Rest::Relay(left) => {
                if here < left {
                    self.server_rest = Rest::Relay(left - here);
                }
                Ok(here.min(left))
            }
            Rest::Drop(left) => {
                self.relay(bytes, *sent, at)?;
                let here = here.min(left);
                *sent = at + here;
                if here < left {
                    self.server_rest = Rest::Drop(left - here);
                }
                Ok(here)
            }
        }
    }

    fn relay(&mut self, bytes: &[u8], sent: usize, at: usize) -> Result<(), End> {
        match bytes.get(sent..at) {
            None | Some([]) => Ok(()),
            Some(ready) => self
                .client_outbox
                .send(&self.client, ready)
                .map_err(End::ClientSocket),
        }
    }

    /// Messages whose body matters, or that make the proxy say something itself.
    #[inline]
    fn is_understood(&self, message: u8) -> bool {
        matches!(
            message,
            tag::READY_FOR_QUERY | tag::COMMAND_COMPLETE | tag::ERROR | tag::PARAMETER_STATUS
        ) || (message == tag::DATA_ROW
            && (self.is_answer() || self.ledger.shown_access().is_some()))
    }

    /// Whether a row answers the proxy's own question.
    #[inline]
    fn is_answer(&self) -> bool {
        self.search_path.is_asking()
            && self
                .ledger
                .front()
                .is_some_and(|front| front.origin == Origin::Proxy)
    }

    /// A row that shows the access mode says what the client sees of it. Where that is not what the server says,
    /// another row is sent in its place.
    fn hides_access(&mut self, row: &[u8]) -> bool {
        let Some(show) = self.ledger.shown_access() else {
            return false;
        };
        let shown = first_column(row)
            .and_then(access::parse)
            .and_then(|server| self.access.shown_for(show, server));
        if let Some(shown) = shown {
            encode::data_row(self.client_outbox.tail(), value(shown));
        }
        shown.is_some()
    }

    #[inline]
    fn on_message(&mut self, header: Header, body: &[u8]) -> Way {
        match header.tag {
            tag::READY_FOR_QUERY => self.on_ready(body),
            tag::COMMAND_COMPLETE => self.on_command_complete(body),
            tag::ERROR => self.on_error(body),
            tag::PARAMETER_STATUS => self.on_parameter_status(body),
            tag::NOTIFICATION => Way::Relay,
            tag::DATA_ROW if self.is_answer() => {
                self.search_path.answer(body);
                Way::Drop
            }
            tag::DATA_ROW if self.hides_access(body) => Way::Drop,
            tag::NOTICE => match self.ledger.front() {
                Some(front) if front.origin == Origin::Proxy => Way::Drop,
                _ => Way::Relay,
            },
            other => {
                if self.is_contradiction(other, &[]) {
                    self.on_contradiction(other, &[]);
                    return Way::Drop;
                }
                if other == tag::PORTAL_SUSPENDED {
                    // The rows that were asked for have been made, and what makes them has run for each.
                    self.on_statement_ran(&[]);
                }
                if matches!(
                    other,
                    tag::PARSE_COMPLETE | tag::BIND_COMPLETE | tag::CLOSE_COMPLETE
                ) && let Some(front) = self.ledger.front_mut()
                {
                    self.names.confirm(std::mem::take(&mut front.name));
                }
                let reply = self.ledger.on_reply(other);
                if other == tag::COPY_IN_RESPONSE {
                    self.on_copy_in();
                }
                match reply {
                    Reply::Relay | Reply::Replace(_) => Way::Relay,
                    Reply::Swallow => Way::Drop,
                }
            }
        }
    }

    fn on_ready(&mut self, body: &[u8]) -> Way {
        if self
            .ledger
            .front()
            .is_some_and(|front| front.request == Request::Query)
        {
            self.names.on_simple_query();
        }
        let reply = self.ledger.on_reply(tag::READY_FOR_QUERY);
        // An unknown status is taken as the one in which least is possible.
        let status = TransactionStatus::from_body(body).unwrap_or(TransactionStatus::Failed);
        self.position.status = status;
        self.settings.on_ready(status);
        if status == TransactionStatus::Idle {
            self.ledger.end_transaction();
            self.access.end_transaction();
            self.names.end_transaction();
            self.search_path.end_transaction();
        }
        self.committed_midway = CommittedMidway::No;
        if self.ledger.is_empty() {
            // Also where the Sync was sent during a COPY that had failed by then.
            self.position.pipeline = Pipeline::Closed;
            self.guard = Guard::Sure;
        }
        match reply {
            Reply::Swallow => Way::Drop,
            Reply::Relay | Reply::Replace(_) => Way::Relay,
        }
    }

    fn on_command_complete(&mut self, body: &[u8]) -> Way {
        let command_tag = backend::command_tag(body);
        if self.is_contradiction(tag::COMMAND_COMPLETE, command_tag) {
            self.on_contradiction(tag::COMMAND_COMPLETE, command_tag);
            return Way::Drop;
        }
        self.on_statement_ran(command_tag);
        match self.ledger.on_reply(tag::COMMAND_COMPLETE) {
            Reply::Swallow => Way::Drop,
            Reply::Relay | Reply::Replace(_) => Way::Relay,
        }
    }

    /// The statement that the next reply is about has run, to its end or as far as it was asked for: what it did to the
    /// session is true now.
    fn on_statement_ran(&mut self, command_tag: &[u8]) {
        let Some((verdict, at)) = self.ledger.front().and_then(InFlight::position) else {
            return;
        };
        let verdict = Arc::clone(verdict);
        let Some(statement) = verdict.statements.get(at) else {
            return;
        };
        if statement.may_change_access_unseen() {
            self.access.on_unseen_change();
        }
        if commits(statement, command_tag) {
            self.committed_midway = CommittedMidway::Yes;
        }
        if command_tag == NO_ROW {
            // The end of a portal whose rows have all come before: set_config was called then, and is not again.
            return;
        }
        for control in &statement.controls {
            self.on_control(control, command_tag);
        }
    }

    fn on_control(&mut self, control: &Control, command_tag: &[u8]) {
        // COMMIT of a failed transaction is a ROLLBACK, and the server says so.
        let rolled_back;
        let control = match control {
            Control::Commit { chain } if command_tag == b"ROLLBACK" => {
                rolled_back = Control::Rollback { chain: *chain };
                &rolled_back
            }
            Control::PrepareTransaction if command_tag == b"ROLLBACK" => {
                rolled_back = Control::Rollback { chain: Chain::No };
                &rolled_back
            }
            control => control,
        };
        self.fence
            .apply(control, &self.accepted, &mut self.settings);
        if let Some(status) = status_after(control) {
            self.position.status = status;
        }
        match control {
            Control::Begin {
                access: Some(access),
            }
            | Control::SetTransactionAccess(access) => {
                self.access.on_transaction_access(*access);
            }
            Control::Commit { chain: Chain::Yes } => self.access.on_chain(),
            Control::Rollback { chain: Chain::Yes } => self.access.on_rollback(),
            Control::Rollback { chain: Chain::No } => {
                self.access.on_rollback();
                self.access.end_transaction();
            }
            Control::Commit { chain: Chain::No } | Control::PrepareTransaction => {
                self.access.end_transaction();
            }
            Control::RollbackTo(_) => self.access.on_rollback_to(),
            Control::SetDefaultAccess(access) => self.access.on_default_access(*access),
            Control::ResetDefaultAccess | Control::ResetAll => self.access.on_reset(),
            Control::DiscardAll => {
                self.access.on_reset();
                self.names.deallocated_all();
            }
            Control::SetFencing { .. } => self.shown.server_has_token = true,
            Control::Prepare { name, effects } => {
                self.names.prepared(name, effects);
            }
            Control::Deallocate { name } => {
                self.names.deallocated(name);
            }
            Control::DeallocateAll => self.names.deallocated_all(),
            _ => {}
        }
    }

    fn on_error(&mut self, body: &[u8]) -> Way {
        let fatal = backend::is_fatal(body);
        let terminated = fatal && backend::error_field(body, b'C') == Some(b"57P01");
        if terminated && !self.accepted.is_empty() {
            self.on_terminated(body);
            return Way::Drop;
        }
        self.settings.on_error();
        if self.position.status == TransactionStatus::Idle {
            self.access.on_rollback();
        }
        let own = self
            .ledger
            .front()
            .is_some_and(|front| front.origin == Origin::Proxy);
        let copying = self.ledger.is_copying_in();
        let reply = self.ledger.on_reply(tag::ERROR);
        if copying && matches!(self.gate, Gate::Open) {
            // What stands behind the COPY in its text may have been waited for.
            self.await_replies();
        }
        match reply {
            // The session ends, whoever's request it was.
            _ if fatal => Way::Relay,
            Reply::Relay => Way::Relay,
            Reply::Replace(rejection) => {
                rejection.encode(Severity::Error, self.client_outbox.tail());
                if matches!(self.gate, Gate::Lift) {
                    self.on_lift_refused(&rejection);
                }
                Way::Drop
            }
            Reply::Swallow => {
                debug_assert!(own);
                self.on_own_statement_failed(body);
                Way::Drop
            }
        }
    }

    fn on_parameter_status(&mut self, body: &[u8]) -> Way {
        let Some((name, reported)) = backend::parameter_status(body) else {
            return Way::Relay;
        };
        self.text_settings.on_report(name, reported);
        if name == IN_HOT_STANDBY.as_bytes() {
            self.access.on_recovery(Recovery::reported(reported));
        }
        if name != DEFAULT_READ_ONLY.as_bytes() {
            return Way::Relay;
        }
        // Anything but a clear "on" leaves the backstop in doubt, and it is put up again.
        let reported = reported_access(reported).unwrap_or(Access::ReadWrite);
        if self
            .ledger
            .front()
            .is_some_and(|front| front.origin == Origin::Proxy)
        {
            return Way::Drop;
        }
        if let Some(shown) = self.access.on_report(reported) {
            encode::parameter_status(self.client_outbox.tail(), DEFAULT_READ_ONLY, value(shown));
        }
        Way::Drop
    }
}

/// The transaction status after a statement, which a pipeline or a text with more to come has before
/// the server says so.
const fn status_after(control: &Control) -> Option<TransactionStatus> {
    match control {
        Control::Begin { .. }
        | Control::RollbackTo(_)
        | Control::Commit { chain: Chain::Yes }
        | Control::Rollback { chain: Chain::Yes } => Some(TransactionStatus::InTransaction),
        Control::Commit { chain: Chain::No }
        | Control::Rollback { chain: Chain::No }
        | Control::PrepareTransaction => Some(TransactionStatus::Idle),
        _ => None,
    }
}

/// Whether a statement that has completed has committed something, with more of its request to come.
fn commits(statement: &Statement, command_tag: &[u8]) -> bool {
    let ends = |control: &Control| {
        matches!(
            control,
            Control::Commit { .. } | Control::PrepareTransaction
        )
    };
    statement.commits_inside == CommitsInside::Possibly
        || (command_tag != b"ROLLBACK" && statement.controls.iter().any(ends))
}
