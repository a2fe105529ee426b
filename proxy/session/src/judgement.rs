//! Decisions on texts and on classes of requests, in the current state of the session.

use std::cell::RefCell;
use std::sync::Arc;

use pgpalisade_policies::{
    Analysis, Control, Effects, FencingVariable, Lifetime, Opaque, Statement, TextEncoding,
    VerdictCache, Weight, classify, weigh, with_ascii_constants,
};

use super::Session;
use super::action::{Action, JudgedText, Prerequisite, Refused, Unread, Waiting};
use super::frame::Uncollected;
use super::in_flight::{InFlight, Request};
use super::lending::Tenancy;
use super::lookup::NamesHere;
use super::names::EXCERPT_MAX;
use super::read_only::{AccessChange, WriteAccess};
use super::token_request::TokenRequest;
use crate::fence::traceparent::Traceparent;
use crate::fence::{Admitted, Leave, Permit, Plan, PreparedNames, Situation, TokenValue, Unmet};
use crate::rejection::{Enforcement, Rejection};
use crate::wire::header::Header;

/// A verdict and its text.
pub(super) struct Judged<'a> {
    pub(super) verdict: &'a Arc<Analysis>,
    /// Available part of the text, for the record of a rejection.
    pub(super) text: &'a [u8],
}

impl Judged<'_> {
    pub(super) fn for_the_record(&self) -> JudgedText {
        JudgedText {
            class: self.verdict.kind(),
            text: excerpt(self.text).to_vec(),
            traceparent: Traceparent::of_statement(self.text),
        }
    }
}

impl Session {
    /// Fast path of nearly every message: the session may write, and the text does not change it.
    #[inline]
    pub(super) fn fast_permit(&self, message: Header, text: &[u8]) -> Option<Permit> {
        // What a text leaves in a lent server connection must be known.
        if self.server.tenancy != Tenancy::ForLife {
            return None;
        }
        let client = &self.client;
        client.fence.admit_text(message, text, client.state.token())
    }

    /// Whether the session holds every token that a text could need.
    #[inline]
    pub(super) fn holds_all(&self) -> bool {
        let client = &self.client;
        client.fence.holds_all(client.state.token())
    }

    /// Verdict on a text, or what must happen to reach one.
    pub(super) fn verdict(
        &self,
        text: Result<&[u8], Uncollected<'_>>,
        verdicts: &RefCell<VerdictCache>,
    ) -> Result<Arc<Analysis>, Prerequisite> {
        let text = match text {
            Ok(text) => text,
            Err(Uncollected { why, start }) => return Ok(Arc::new(Analysis::opaque(why, start))),
        };
        let settings = &self.server.text_settings;
        let encoding = settings.for_text(text, self.server.ledger.settled());
        if encoding != Some(TextEncoding::Utf8)
            && let Some(ascii) = with_ascii_constants(text)
        {
            return self.verdict_as(&ascii, TextEncoding::Utf8, verdicts);
        }
        if encoding != Some(TextEncoding::Utf8) && self.holds_all() {
            // This session may do anything, so the text is read as its client means it.
            let verdict = self.verdict_as(text, settings.reported(), verdicts)?;
            return Ok(Arc::new(verdict.in_doubt(Opaque::Encoding)));
        }
        self.verdict_as(text, encoding.ok_or(Prerequisite::Replies)?, verdicts)
    }

    fn verdict_as(
        &self,
        text: &[u8],
        encoding: TextEncoding,
        verdicts: &RefCell<VerdictCache>,
    ) -> Result<Arc<Analysis>, Prerequisite> {
        let mut verdicts = verdicts.borrow_mut();
        if let Some(verdict) = verdicts.find(text, encoding) {
            return Ok(verdict);
        }
        let prepared = self.prepared.as_ref();
        let classified = prepared.and_then(|done| done.verdict.clone());
        let verdict = match (classified, weigh(text)) {
            // The next time there may be time for it.
            (Some(verdict), _) if verdict.statements.iter().any(Statement::is_unread) => {
                return Ok(verdict);
            }
            (Some(verdict), _) => verdict,
            (None, Weight::Light) => Arc::new(classify(text, encoding)),
            (None, Weight::Heavy) => {
                let text = text.to_vec();
                return Err(Prerequisite::Verdict(Box::new(Unread { text, encoding })));
            }
        };
        verdicts.keep(text, encoding, &verdict);
        Ok(verdict)
    }

    /// Decides a request of which only the effects are known.
    pub(super) fn decide_effects(
        &mut self,
        message: Header,
        effects: &Effects,
        request: Request,
        refused: Refused,
    ) -> Action {
        if let Some(rejection) = self.unguarded() {
            return self.refuse_once_answered(Box::new(rejection), refused, None);
        }
        let token = self.client.state.token();
        match self.client.fence.admit_effects(message, effects, token) {
            Ok(Admitted { permit, observed }) => {
                if let Some(rejection) = observed {
                    self.record(&rejection, Enforcement::Observed, None);
                }
                self.server.has_run_more_than_reads = true;
                let mut entry = InFlight::client(request, None);
                entry.leave = self.leave_for_reads();
                if entry.leave.writes() {
                    self.server.read_only.on_reset_sent();
                }
                self.forward(permit, Some(entry))
            }
            Err(unmet) => self.meet(unmet, refused, None, None),
        }
    }

    /// Refuses a request, or asks for the declaration that it needs.
    fn meet(
        &mut self,
        unmet: Unmet,
        refused: Refused,
        judged: Option<&Judged<'_>>,
        change: Option<AccessChange>,
    ) -> Action {
        match unmet {
            Unmet::Refuse(rejection) => self.refuse_once_answered(rejection, refused, judged),
            _ if !self.server.ledger.is_empty() => Action::Need(Prerequisite::Replies),
            Unmet::Declare(value) => {
                let statement = judged.map(Judged::for_the_record);
                self.prepared().waiting = Some(Waiting { refused, statement });
                let (state, fence) = (&self.client.state, &self.client.fence);
                let startup = state.undeclared_startup();
                let wanted = match startup.filter(|held| held.value() == value) {
                    Some(held) => TokenRequest::again(fence, held),
                    None => TokenRequest::new(fence, value),
                };
                Action::Need(Prerequisite::Tokens(Box::new(wanted), change))
            }
        }
    }

    /// Refuses a request after the replies to everything before it.
    pub(super) fn refuse_once_answered(
        &mut self,
        rejection: Box<Rejection>,
        refused: Refused,
        judged: Option<&Judged<'_>>,
    ) -> Action {
        if self.server.ledger.is_empty() {
            self.refuse(rejection, refused, judged.map(Judged::for_the_record))
        } else {
            Action::Need(Prerequisite::Replies)
        }
    }

    /// Decides a text whose verdict is known.
    pub(super) fn decide(
        &mut self,
        message: Header,
        judged: &Judged<'_>,
        request: Request,
    ) -> Action {
        let verdict = judged.verdict;
        if !self.server.ledger.is_empty() && self.client.state.needs_certainty_for(verdict) {
            return Action::Need(Prerequisite::Replies);
        }
        if verdict.has_controls() {
            if let Some(action) = self.parse_named_again(verdict, request) {
                return action;
            }
            // A take is a text of its own.
            let is_single = matches!(&*verdict.statements, [only] if only.controls.len() == 1);
            let prepared = self.prepared.as_ref().filter(|_| is_single);
            let taken = prepared.and_then(|done| done.obtained.clone());
            self.client.state.on_taken(taken);
        }
        self.record_observed_end();
        let (Admitted { permit, observed }, plan) = match self.plan(message, verdict) {
            Ok(planned) => self.as_if_guarded(planned, message, judged, request),
            Err(unmet) => return self.before_unmet(unmet, judged, request),
        };
        if plan.declares
            && let Some(late) = self.declared_after_an_end(verdict)
        {
            return self.refuse_once_answered(late, Refused::of(request), Some(judged));
        }
        if let Some(prerequisite) = self.before_sending(&plan, judged, request) {
            return Action::Need(prerequisite);
        }
        if let Some(rejection) = observed.or_else(|| self.late_token(&plan, verdict)) {
            let statement = Some(judged.for_the_record());
            self.record(&rejection, Enforcement::Observed, statement);
        }
        self.client.settles |= plan.settles;
        let read_only = &mut self.server.read_only;
        let guard = read_only.guard();
        read_only.on_sent(plan.guard, &verdict.statements, plan.leave);
        if plan.changes_names {
            self.server.names.forget_statements();
        }
        // In a failed transaction nothing runs before its end.
        let runs = !self.is_failed()
            || !self.server.ledger.is_empty()
            || verdict.any_control(Control::is_transaction)
            || verdict.statements.iter().any(Statement::is_unread);
        if runs && !self.note_assignments(verdict, judged.text, request) {
            self.server.note_leftover(verdict);
            self.note_named(verdict);
        }
        self.server.has_run_more_than_reads |= plan.leave.writes();
        let mut entry = InFlight::client(request, Some(Arc::clone(verdict)));
        entry.leave = plan.leave;
        entry.guard = guard;
        self.forward(permit, Some(entry))
    }

    /// Next step before a text is refused, or its declaration is made.
    fn before_unmet(&mut self, unmet: Unmet, judged: &Judged<'_>, request: Request) -> Action {
        let verdict = judged.verdict;
        if let Some(action) = self.begin_guarded(&unmet, judged, request) {
            return action;
        }
        let opens = |value| self.client.fence.opens(value);
        if matches!(&unmet, Unmet::Declare(value) if opens(value))
            && let Some(late) = self.declared_after_an_end(verdict)
        {
            return self.refuse_once_answered(late, Refused::of(request), Some(judged));
        }
        let change = match &unmet {
            Unmet::Declare(value) => self.read_write_first(value, verdict, request),
            Unmet::Refuse(_) => None,
        };
        self.meet(unmet, Refused::of(request), Some(judged), change)
    }

    /// Next step before a text is sent that may pass: write access for its declaration, or for SHOW what only the
    /// proxy knows.
    fn before_sending(
        &mut self,
        plan: &Plan,
        judged: &Judged<'_>,
        request: Request,
    ) -> Option<Prerequisite> {
        let verdict = judged.verdict;
        if plan.declares
            && let Some(change) = self.set_access_before_binding(verdict, request)
        {
            self.prepared().is_binding = true;
            if change != AccessChange::Release {
                return Some(Prerequisite::Access(change));
            }
            // No reply to wait for: if it fails, the session ends.
            self.begin_set_access(change);
        }
        if let Some(prerequisite) = self.ask_history_first(judged, request) {
            return Some(prerequisite);
        }
        self.publish_first(verdict)
    }

    /// Plans a text by the confirmed state if it holds for this text, otherwise by the worst case.
    pub(super) fn plan(
        &self,
        message: Header,
        verdict: &Analysis,
    ) -> Result<(Admitted, Plan), Unmet> {
        let (client, server) = (&self.client, &self.server);
        let settled = server.ledger.settled();
        let names = settled.map(|settled| NamesHere::new(settled, &server.names, &server.ledger));
        let situation = Situation {
            fence: &client.fence,
            state: &client.state,
            accepted: server.registration.accepted(),
            wrote: server.ledger.wrote(),
            pipeline: client.pipeline,
            guard: server.read_only.guard(),
            names: names.as_ref().map(|names| names as &dyn PreparedNames),
        };
        situation.plan(message, verdict)
    }

    /// Permission that a read gets: a function of the database may write whenever the session may.
    pub(super) fn leave_for_reads(&self) -> Leave {
        match self.write_access() {
            WriteAccess::MayWrite => Leave::ReadUnguarded,
            WriteAccess::MayNotWrite => Leave::Read,
        }
    }

    /// Change of the access mode that comes before a declaration inside a guarded transaction block. If it is too
    /// late for the change, nothing was declared and no mark raised. If the declaration fails, so does the
    /// transaction, and nothing can use the change.
    fn read_write_first(
        &mut self,
        value: &TokenValue,
        verdict: &Analysis,
        request: Request,
    ) -> Option<AccessChange> {
        let change = self.set_access_before_binding(verdict, request);
        let is_read_write = |due: &AccessChange| matches!(due, AccessChange::ReadWrite(_));
        let change = change.filter(|due| is_read_write(due) && self.client.fence.opens(value))?;
        self.prepared().is_binding = true;
        Some(change)
    }
}

/// Beginning of a text, for the record of a rejection.
pub(super) fn excerpt(text: &[u8]) -> &[u8] {
    text.get(..EXCERPT_MAX).unwrap_or(text)
}

/// Lifetime of the tokens in a text: the transaction only if each of them is set LOCAL.
pub(super) fn lifetime(verdict: &Analysis) -> Lifetime {
    let for_session = |control: &Control| {
        matches!(
            control,
            Control::SetFencing {
                variable: FencingVariable::Token,
                lifetime: Lifetime::Session,
                ..
            } | Control::ResetFencing {
                lifetime: Lifetime::Session,
                ..
            }
        )
    };
    if verdict.any_control(for_session) {
        Lifetime::Session
    } else {
        Lifetime::Local
    }
}
