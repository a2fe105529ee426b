//! Decisions on texts and on classes of requests, in the current state of the session.

use std::cell::RefCell;
use std::sync::Arc;

use pgpalisade_policies::{
    Analysis, Control, Effects, FencingShow, FencingVariable, Lifetime, Opaque, Statement,
    TextEncoding, VerdictCache, Weight, classify, weigh,
};

use super::action::{Action, JudgedText, Prerequisite, Refused, Unread, Waiting};
use super::in_flight::{InFlight, Leave, Request};
use super::lookup::NamesHere;
use super::names::EXCERPT_MAX;
use super::read_only::{AccessChange, WriteAccess};
use super::token_text::{is_take, with_tokens};
use super::tokens::TokenRequest;
use super::{Session, Settles};
use crate::fence::traceparent::Traceparent;
use crate::fence::{
    Admitted, Confirmed, Decision, Name, Permit, ServerText, Situation, TokenValue, Unmet,
    runs_a_name,
};
use crate::rejection::Enforcement;
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
        text: Result<&[u8], Opaque>,
        verdicts: &RefCell<VerdictCache>,
    ) -> Result<Arc<Analysis>, Prerequisite> {
        let text = match text {
            Ok(text) => text,
            Err(why) => return Ok(Arc::new(Analysis::opaque(why))),
        };
        let settings = &self.server.text_settings;
        let encoding = settings.for_text(text, self.server.ledger.settled());
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
            return if self.server.ledger.is_empty() {
                self.refuse(Box::new(rejection), refused, None)
            } else {
                Action::Need(Prerequisite::Replies)
            };
        }
        let token = self.client.state.token();
        match self.client.fence.admit_effects(message, effects, token) {
            Ok(Admitted { permit, observed }) => {
                if let Some(rejection) = observed {
                    self.record(&rejection, Enforcement::Observed, None);
                }
                let mut entry = InFlight::client(request, None);
                entry.leave = self.leave_for_reads();
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
        if !self.server.ledger.is_empty() {
            return Action::Need(Prerequisite::Replies);
        }
        let statement = judged.map(Judged::for_the_record);
        match unmet {
            Unmet::Refuse(rejection) => self.refuse(rejection, refused, statement),
            Unmet::Declare(value) => {
                self.prepared().waiting = Some(Waiting { refused, statement });
                let wanted = TokenRequest::new(&self.client.fence, value);
                Action::Need(Prerequisite::Tokens(Box::new(wanted), change))
            }
        }
    }

    /// Decides a text whose verdict is known. A take whose token was accepted is decided like a declaration of that
    /// token.
    pub(super) fn decide(
        &mut self,
        message: Header,
        judged: &Judged<'_>,
        request: Request,
    ) -> Action {
        if !judged.verdict.has_controls() {
            // Without controls, the text is not a take.
            return self.decide_plain(message, judged, request);
        }
        self.client.state.on_sent(ServerText::Tokens);
        let prepared = self.prepared.as_ref();
        let tokens = prepared.and_then(|done| done.tokens.as_deref());
        let Some(tokens) = tokens.filter(|_| is_take(judged.verdict)) else {
            return self.decide_plain(message, judged, request);
        };
        let declares = Judged {
            verdict: &Arc::new(with_tokens(judged.verdict, tokens)),
            text: judged.text,
        };
        let action = self.decide_plain(message, &declares, request);
        if matches!(action, Action::Forward(_)) {
            self.client.state.on_sent(ServerText::Take);
        }
        action
    }

    fn decide_plain(&mut self, message: Header, judged: &Judged<'_>, request: Request) -> Action {
        let verdict = judged.verdict;
        let holds = touches_token(verdict);
        let names = verdict.any_control(runs_a_name);
        // A failed transaction would undo the token by which its later statements are judged.
        let goes_on = verdict.statements.len() > 1 && self.ends_doubt(verdict);
        // A failed transaction may be over when this text arrives.
        if (holds || names || goes_on || self.is_failed()) && !self.server.ledger.is_empty() {
            return Action::Need(Prerequisite::Replies);
        }
        self.record_observed_end();
        let Admitted { permit, observed } = match self.plan(message, verdict) {
            Ok(admitted) => admitted,
            Err(unmet) => {
                let refused = Refused::of(request);
                let change = match &unmet {
                    Unmet::Declare(value) => self.read_write_first(value, verdict, request),
                    Unmet::Refuse(_) => None,
                };
                return self.meet(unmet, refused, Some(judged), change);
            }
        };
        if let Some(prerequisite) = self.before_sending(judged, request) {
            return Action::Need(prerequisite);
        }
        if let Some(rejection) = observed {
            self.record(
                &rejection,
                Enforcement::Observed,
                Some(judged.for_the_record()),
            );
        }
        self.send_text(verdict, request, permit)
    }

    /// Next step before a text is sent that may pass: write access for its declaration, or for SHOW what only the
    /// proxy knows.
    fn before_sending(&mut self, judged: &Judged<'_>, request: Request) -> Option<Prerequisite> {
        let verdict = judged.verdict;
        if verdict.any_control(sets_token) && self.declares_to_write(verdict) {
            match self.set_access_before_binding(verdict, request) {
                // No reply to wait for: if it fails, the session ends.
                Some(AccessChange::Release) => {
                    self.prepared().is_binding = true;
                    self.begin_set_access(AccessChange::Release);
                }
                Some(change) => {
                    self.prepared().is_binding = true;
                    return Some(Prerequisite::Access(change));
                }
                None => {}
            }
        }
        if let Some(prerequisite) = self.ask_history_first(judged, request) {
            return Some(prerequisite);
        }
        self.publish_first(verdict)
    }

    /// Sends a text and notes its effects on the session.
    fn send_text(&mut self, verdict: &Arc<Analysis>, request: Request, permit: Permit) -> Action {
        // Statements after a declaration in the same text may write as well.
        let declares = verdict.any_control(sets_token) && self.declares_to_write(verdict);
        if touches_token(verdict) || self.ends_doubt(verdict) {
            self.client.settles = Settles::Yes;
        }
        self.server.read_only.on_sent(&verdict.statements);
        self.forget_names_changed_by(verdict);
        let mut entry = InFlight::client(request, Some(Arc::clone(verdict)));
        if verdict.statements.iter().any(Statement::may_hide_a_write) {
            entry.leave = if declares || self.comes_to_write(verdict) {
                Leave::ReadUnguarded
            } else {
                self.leave_for_reads()
            };
        }
        self.forward(permit, Some(entry))
    }

    /// Forgets the names of statements if an EXECUTE may change them, which is not tracked.
    fn forget_names_changed_by(&mut self, verdict: &Analysis) {
        let names = &self.server.names;
        let changes = |control: &Control| match control {
            Control::Execute { name } => names.may_be_changed_by(Name::statement(name.as_bytes())),
            _ => false,
        };
        if verdict.any_control(changes) {
            self.server.names.forget_statements();
        }
    }

    /// Whether a text decides what becomes of a token that was set in the open transaction.
    fn ends_doubt(&self, verdict: &Analysis) -> bool {
        self.client.state.is_in_doubt() && verdict.any_control(Control::is_transaction)
    }

    /// Decides by the confirmed state if it holds for this text, otherwise by the worst case.
    fn plan(&self, message: Header, verdict: &Analysis) -> Decision {
        let (client, server) = (&self.client, &self.server);
        let settled = server.ledger.settled();
        let names = settled.map(|settled| NamesHere::new(settled, &server.names, &server.ledger));
        let guard = server.read_only.guard();
        let situation = Situation {
            fence: &client.fence,
            state: &client.state,
            accepted: server.registration.accepted(),
            wrote: server.ledger.wrote(),
            pipeline: client.pipeline,
            confirmed: names.as_ref().map(|names| Confirmed { names, guard }),
        };
        situation.decide(message, verdict)
    }

    /// Permission that a read gets: a function of the database may write whenever the session may.
    fn leave_for_reads(&self) -> Leave {
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

    /// Whether a text declares a token that lets the session write. One that a RESET or the end of a transaction
    /// restores does not count: the statements before it run without it.
    fn declares_to_write(&self, verdict: &Analysis) -> bool {
        self.may_write_after(verdict, sets_token)
    }

    /// Whether the session may write at some point of a text, also if the end of a transaction restores a token.
    fn comes_to_write(&self, verdict: &Analysis) -> bool {
        verdict.has_controls() && self.may_write_after(verdict, |_| true)
    }

    /// Whether the session may write after one of these statements of a text.
    fn may_write_after(&self, verdict: &Analysis, is_meant: impl Fn(&Control) -> bool) -> bool {
        let fence = &self.client.fence;
        let accepted = self.server.registration.accepted();
        let mut ahead = self.client.state.clone();
        controls(verdict).any(|control| {
            ahead.apply(fence, accepted, control);
            is_meant(control) && fence.may_write(ahead.token())
        })
    }

    /// Asks the authority for the last takeovers before a SHOW of them.
    fn ask_history_first(&mut self, judged: &Judged<'_>, request: Request) -> Option<Prerequisite> {
        let prepared = self.prepared.as_ref();
        let is_known = prepared.is_some_and(|done| done.history.is_some());
        if !judged.verdict.any_control(shows_history) || is_known || self.is_failed() {
            return None;
        }
        if !self.server.ledger.is_empty() {
            return Some(Prerequisite::Replies);
        }
        self.prepared().waiting = Some(Waiting {
            refused: Refused::of(request),
            statement: Some(judged.for_the_record()),
        });
        Some(Prerequisite::History)
    }

    /// Publishes a setting that only the proxy knows before a SHOW of it.
    pub(super) fn publish_first(&mut self, verdict: &Analysis) -> Option<Prerequisite> {
        let shows = |control: &Control| matches!(control, Control::ShowFencing(_));
        if !verdict.any_control(shows) || self.is_failed() {
            return None;
        }
        if !self.server.ledger.is_empty() {
            return Some(Prerequisite::Replies);
        }
        self.publish_settings(verdict);
        None
    }
}

/// Beginning of a text, for the record of a rejection.
pub(super) fn excerpt(text: &[u8]) -> &[u8] {
    text.get(..EXCERPT_MAX).unwrap_or(text)
}

fn controls(verdict: &Analysis) -> impl Iterator<Item = &Control> {
    verdict
        .statements
        .iter()
        .flat_map(|statement| &statement.controls)
}

/// Whether a text may change what the session holds, or shows it.
fn touches_token(verdict: &Analysis) -> bool {
    verdict.any_control(|control| {
        matches!(
            control,
            Control::SetFencing { .. }
                | Control::ResetFencing { .. }
                | Control::ResetAll
                | Control::DiscardAll
                | Control::ShowFencing(_)
        )
    })
}

const fn sets_token(control: &Control) -> bool {
    matches!(
        control,
        Control::SetFencing {
            variable: FencingVariable::Token,
            ..
        }
    )
}

/// Lifetime of the tokens in a text: the transaction only if each of them is set LOCAL.
pub(super) fn lifetime(verdict: &Analysis) -> Lifetime {
    let for_session = |control: &Control| {
        let lasts = matches!(
            control,
            Control::SetFencing {
                lifetime: Lifetime::Session,
                ..
            }
        );
        lasts && sets_token(control)
    };
    if controls(verdict).any(for_session) {
        Lifetime::Session
    } else {
        Lifetime::Local
    }
}

pub(super) const fn shows_history(control: &Control) -> bool {
    matches!(control, Control::ShowFencing(FencingShow::History))
}
