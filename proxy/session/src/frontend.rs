//! Frontend messages, and what each needs before it may be sent.

use std::cell::RefCell;
use std::sync::Arc;

use pgpalisade_policies::{
    Analysis, Category, Class, Effects, Leftover, Tables, VerdictCache, reads_large_objects,
};

use super::action::{Action, Prerequisite, Refused};
use super::endings::Ending;
use super::frame::{COLLECTED_MAX, Frame, LOOKED_AT_MAX};
use super::in_flight::{InFlight, Request};
use super::judgement::Judged;
use super::read_only::AccessChange;
use super::{Met, ReadWriteRequest, Session, injected};
use crate::fence::{Basis, Leave, Permit, Pipeline};
use crate::rejection::Rejection;
use crate::wire::WireError;
use crate::wire::backend::TransactionStatus;
use crate::wire::frontend::{self, FrontendTag};
use crate::wire::header::Header;

/// Size up to which a FunctionCall is collected: those that read large objects have three numbers.
const READS_MAX: usize = 64;

impl Session {
    /// Decides one frontend message. The session's own messages are left in its output, to be sent ahead of it.
    #[inline]
    pub fn on_frontend(&mut self, frame: Frame<'_>, verdicts: &RefCell<VerdictCache>) -> Action {
        let action = self.decide_frontend(frame, verdicts);
        if self.prepared.is_some() && matches!(action, Action::Forward(_) | Action::Discard) {
            self.prepared = None;
        }
        action
    }

    fn decide_frontend(&mut self, frame: Frame<'_>, verdicts: &RefCell<VerdictCache>) -> Action {
        let tag = match FrontendTag::from_byte(frame.header.tag) {
            Ok(tag) => tag,
            Err(error) => return self.violates(error),
        };
        if self.server.ledger.is_skipping()
            && !matches!(tag, FrontendTag::Sync | FrontendTag::Terminate)
        {
            return Action::Discard;
        }
        // The server ends a session that sends anything else while it reads the data of a COPY.
        if self.server.ledger.is_copying_in() && !tag.runs_nothing() {
            let error = WireError::DuringCopy(frame.header.tag);
            return self.end_for_violation(error).into();
        }
        if self.client.settles {
            // A request in flight may change what the session holds.
            self.client.settles = !self.server.ledger.is_empty();
            if !self.is_settled() {
                return Action::Need(Prerequisite::Replies);
            }
        }
        if let Some(action) = self.declare_first(tag) {
            return action;
        }
        if let Some(action) = self.set_access_first(tag) {
            return action;
        }
        if let Some(action) = self.tell_token(tag) {
            return action;
        }
        // A session without every token it could need is judged by its state at the start of a request cycle. The
        // cycle before must be answered by then.
        if tag.is_judged() && self.server.ledger.settled().is_none() && !self.holds_all() {
            return Action::Need(Prerequisite::Replies);
        }
        match tag {
            FrontendTag::Query => self.on_query(frame, verdicts),
            FrontendTag::Parse => self.on_parse(frame, verdicts),
            FrontendTag::Bind => self.on_bind(frame),
            FrontendTag::Execute => self.on_execute(frame),
            FrontendTag::Describe | FrontendTag::Close => self.on_target(tag, frame),
            FrontendTag::Sync => self.on_sync(frame.header),
            FrontendTag::Flush if frame.header.body_len > 0 => self.malformed(tag, frame),
            FrontendTag::Flush => self.forward_harmless(frame.header, None),
            FrontendTag::FunctionCall => self.on_function_call(frame),
            FrontendTag::CopyData | FrontendTag::CopyDone | FrontendTag::CopyFail => {
                self.on_copy_message(tag, frame.header)
            }
            FrontendTag::Terminate => Action::Terminate,
            FrontendTag::Password => self.violates(WireError::UnknownFrontendTag(frame.header.tag)),
        }
    }

    /// Forwards a message and notes what completes it.
    #[inline(always)]
    pub(super) fn forward(&mut self, permit: Permit, entry: Option<InFlight>) -> Action {
        if let Some(mut entry) = entry {
            if matches!(permit.basis(), Basis::Token | Basis::Exempt) {
                entry.leave = Leave::Write;
            }
            match entry.request {
                Request::Execute => self.server.text_settings.on_run(),
                request if request.ends_cycle() => {
                    if request != Request::Sync && self.client.pipeline == Pipeline::Open {
                        entry.may_be_skipped = true;
                        // PostgreSQL 18 then fails the next statement on this connection (XX000).
                        self.server.has_run_more_than_reads = true;
                        self.client.settles = true;
                    }
                    self.server.text_settings.on_cycle_sent();
                    self.settle_changes();
                }
                _ => {}
            }
            self.server.ledger.push(entry);
        }
        Action::Forward(permit)
    }

    /// Ends the session for what its client has sent, after the replies to all before it.
    pub(super) fn violates(&mut self, error: WireError) -> Action {
        if self.is_settled() {
            self.end_for_violation(error).into()
        } else {
            Action::Need(Prerequisite::Replies)
        }
    }

    /// Forwards a message that by its type cannot change data.
    #[inline(always)]
    pub(super) fn forward_harmless(&mut self, message: Header, entry: Option<InFlight>) -> Action {
        match self.client.fence.admit_harmless(message) {
            Some(permit) => self.forward(permit, entry),
            None => self
                .end_for_violation(WireError::UnknownFrontendTag(0))
                .into(),
        }
    }

    /// Whether to wait for the rest of a message with a text. A session that may write everything does not wait for a
    /// long one, unless it must be known what that leaves.
    pub(super) fn collects(&self, frame: Frame<'_>) -> bool {
        let len = frame.header.body_len;
        !frame.is_whole()
            && frame.has_room()
            && (len <= LOOKED_AT_MAX
                || (len <= COLLECTED_MAX && (self.is_lent() || !self.holds_all())))
    }

    fn on_query(&mut self, frame: Frame<'_>, verdicts: &RefCell<VerdictCache>) -> Action {
        // What is not searched may redefine every name.
        let is_searched = frame.header.body_len <= COLLECTED_MAX && self.server.names.has_named();
        if self.collects(frame) || (is_searched && frame.has_room() && !frame.is_whole()) {
            return Action::AwaitWhole;
        }
        let text = match (frame.is_whole(), frontend::query(frame.body)) {
            (true, Ok(text)) => Ok(text),
            (true, Err(_)) => return self.malformed(FrontendTag::Query, frame),
            (false, _) => Err(frame.uncollected(b"")),
        };
        let action = match text
            .ok()
            .and_then(|text| self.fast_permit(frame.header, text))
        {
            Some(permit) => self.forward(permit, Some(InFlight::client(Request::Query, None))),
            None => {
                let verdict = match self.verdict(text, verdicts) {
                    Ok(verdict) => verdict,
                    Err(prerequisite) => return Action::Need(prerequisite),
                };
                let judged = Judged {
                    verdict: &verdict,
                    text: text.unwrap_or(frame.body),
                };
                self.decide(frame.header, &judged, Request::Query)
            }
        };
        if matches!(action, Action::Forward(_)) {
            // A simple Query ends the transaction of a pipeline, with or without a Sync.
            self.client.pipeline = Pipeline::Closed;
        }
        action
    }

    /// Calls any function by its OID. PostgreSQL's manual calls it obsolete, but libpq reads large objects so.
    fn on_function_call(&mut self, frame: Frame<'_>) -> Action {
        if frame.header.body_len <= READS_MAX && !frame.is_whole() && frame.has_room() {
            return Action::AwaitWhole;
        }
        let mut effects = Effects::unknown(Some(Category::FunctionCall));
        let call = frontend::function_call(frame.body);
        if call.is_some_and(|(function, arguments)| reads_large_objects(function, &arguments)) {
            effects.class = Class::Read;
            effects.writes = Tables::none();
        }
        let request = Request::FunctionCall;
        let action = self.decide_effects(frame.header, &effects, request, Refused::Whole);
        if effects.class != Class::Read && matches!(action, Action::Forward(_)) {
            self.server.is_discarded = false;
            self.server.note_setting();
            self.server.keep(Leftover::Unread);
        }
        action
    }

    /// Makes the next message wait for replies if the end of this request cycle may change what the session holds: it
    /// ends the pipeline's transaction.
    #[inline]
    pub(super) fn settle_changes(&mut self) {
        let state = &self.client.state;
        if state.status() == TransactionStatus::Idle && state.is_in_doubt() {
            self.client.settles = true;
        }
    }

    fn on_sync(&mut self, message: Header) -> Action {
        let sync = InFlight::client(Request::Sync, None);
        if self.server.ledger.is_copying_in() {
            // The server ignores Sync during COPY.
            self.server.ledger.push(sync);
            return self.forward_harmless(message, None);
        }
        self.client.pipeline = Pipeline::Closed;
        self.forward_harmless(message, Some(sync))
    }

    /// Forwards a message that PostgreSQL rejects for its layout. The server answers it, in a pipeline with an error.
    pub(super) fn malformed(&mut self, tag: FrontendTag, frame: Frame<'_>) -> Action {
        let request = match tag {
            FrontendTag::Query => Request::MalformedQuery,
            FrontendTag::Flush => Request::MalformedFlush,
            _ => Request::Malformed,
        };
        let action = match self.client.fence.admit_malformed(frame.header, frame.body) {
            Some(permit) => self.forward(permit, Some(InFlight::client(request, None))),
            None => self
                .end_for_violation(WireError::UnknownFrontendTag(0))
                .into(),
        };
        self.client.pipeline = if request.ends_cycle() {
            Pipeline::Closed
        } else {
            Pipeline::Open
        };
        action
    }

    /// Sends Flush if the server may hold replies back until then.
    pub fn ask_for_replies(&mut self) {
        if self.client.pipeline == Pipeline::Open {
            injected::flush(&mut self.output.to_server);
        }
    }

    /// Stores the verdict on the text at the front, which another thread reached.
    pub fn on_verdict(&mut self, verdict: Arc<Analysis>) {
        self.prepared().verdict = Some(verdict);
    }

    /// Sends the proxy's statements that set the access mode.
    pub fn begin_set_access(&mut self, change: AccessChange) {
        self.server.read_only.on_set_access(change);
        self.execute_own(injected::default_access(change), None);
        match change {
            AccessChange::Guard => {
                let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
                let pipeline = Pipeline::Open;
                injected::execute(out, ledger, pipeline, injected::WAIT_FOR_NONE, None);
                self.execute_own(injected::WHICH_PROCESS, None);
            }
            AccessChange::Release => {}
            AccessChange::ReadWrite(_) => {
                self.prepared().read_write = ReadWriteRequest::Sent;
                let error = Some(Box::new(Rejection::declared_too_late()));
                self.execute_own(injected::READ_WRITE, error);
            }
        }
    }

    /// Evaluates the replies to [`Self::begin_set_access`].
    ///
    /// # Errors
    ///
    /// Ends the session if its transactions are still not read-only.
    pub fn end_set_access(&mut self, change: AccessChange) -> Result<Met, Ending> {
        let pid = self.server.identity.pid();
        if change == AccessChange::Guard && !self.server.read_only.confirm(pid) {
            return Err(self.end_unguarded());
        }
        if self.prepared().read_write == ReadWriteRequest::Refused {
            self.prepared = None;
            return Ok(Met::Answered);
        }
        Ok(Met::Yes)
    }

    /// Runs a statement of the proxy. If it fails, the client gets `error`.
    pub(super) fn execute_own(&mut self, sql: &str, error: Option<Box<Rejection>>) {
        let (out, ledger) = (&mut self.output.to_server, &mut self.server.ledger);
        injected::execute(out, ledger, self.client.pipeline, sql, error);
    }
}
