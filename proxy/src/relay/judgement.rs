//! What a text or a class of request needs before it may be sent, given where the session stands.

use std::sync::Arc;

use pgpalisade_policies::scan::{self, NeedsParse};
use pgpalisade_policies::{
    Control, Effects, FencingShow, FencingVariable, Lexing, ObjectName, Opaque, SearchPath,
    Statement, Verdict, Weight, classify, weigh,
};

use super::steps::{Forward, Judged, Refused, Step, Then};
use super::{Front, Relay};
use crate::fence::{Admission, Confirmed, Guard, Permit, Plan, Situation, TokenValue, runs_a_name};
use crate::rejection::Rejection;
use crate::session::access::{Adjustment, Standing};
use crate::session::in_flight::{InFlight, Leave, Request};
use crate::session::names::EXCERPT_MAX;
use crate::wire::backend::TransactionStatus;

/// Settings that only the proxy knows, by name, as SHOW is to find them.
pub(super) type SettingsToShow = Vec<(&'static str, String)>;

/// Class and text of the statement that was judged last.
#[derive(Debug, Default)]
pub(super) struct LastJudged {
    /// As the policy names it.
    pub class: Option<&'static str>,
    /// The front of the text, kept only where it was refused.
    pub text: Vec<u8>,
}

/// What SHOW needs to know of the session's past.
#[derive(Debug, Default)]
pub(super) struct ShownSettings {
    /// What the server was told for the message that is being looked at.
    pub published: Option<SettingsToShow>,
    /// The server has a value for `fencing.token`, even if an empty one.
    pub server_has_token: bool,
}

impl Relay {
    /// The way of nearly every message: the session may write, and the text does nothing to it.
    #[inline]
    pub(super) fn fast_permit(&self, text: &[u8]) -> Option<Permit> {
        match scan::needs_parse(text) {
            NeedsParse::Yes => None,
            NeedsParse::No => self.permit_for_any(),
        }
    }

    /// A permit for whatever does nothing to the session, where it holds all that this could need. `None` says nothing.
    #[inline]
    pub(super) fn permit_for_any(&self) -> Option<Permit> {
        self.fence.admit_any(self.settings.token())
    }

    /// What a text does, or the step that finds it out.
    pub(super) fn verdict(&self, text: Result<&[u8], Opaque>) -> Result<Arc<Verdict>, Step> {
        let text = match text {
            Ok(text) => text,
            Err(why) => return Ok(Arc::new(Verdict::opaque(why))),
        };
        let reported = self.text_settings.reported();
        match self.text_settings.for_text(text, self.ledger.settled()) {
            Some(lexing) if lexing == reported => self.verdict_as(text, lexing),
            // A session that may do anything is followed by what its client means.
            _ if self.permit_for_any().is_some() => {
                let verdict = self.verdict_as(text, reported)?;
                Ok(Arc::new(verdict.in_doubt(Opaque::Encoding)))
            }
            Some(lexing) => self.verdict_as(text, lexing),
            None => Err(Step::AwaitReplies),
        }
    }

    fn verdict_as(&self, text: &[u8], lexing: Lexing) -> Result<Arc<Verdict>, Step> {
        let mut verdicts = self.worker.verdicts.borrow_mut();
        if let Some(verdict) = verdicts.find(text, lexing) {
            return Ok(verdict);
        }
        let verdict = match (self.classified.clone(), weigh(text)) {
            (Some(verdict), _) => verdict,
            (None, Weight::Light) => Arc::new(classify(text, lexing)),
            (None, Weight::Heavy) => return Err(Step::Classify(text.to_vec(), lexing)),
        };
        verdicts.keep(text, lexing, &verdict);
        Ok(verdict)
    }

    /// Decides a request of which nothing is known but its effects.
    pub(super) fn decide_effects(
        &mut self,
        effects: &Effects,
        request: Request,
        refused: Refused,
    ) -> Step {
        if let Some(rejection) = self.refusal_on_hold.take() {
            return Step::Refuse(rejection, refused);
        }
        if let Some(step) = self.lower_due() {
            return step;
        }
        let token = self.settings.token();
        if self.guard_now() == Guard::InDoubt
            && let Some(rejection) = self.unguarded()
        {
            return match self.ledger.is_empty() {
                true => Step::Refuse(Box::new(rejection), refused),
                false => Step::AwaitReplies,
            };
        }
        let path = self.search_path.get();
        let admission = self.fence.admit_effects(effects, token, path);
        let waits = !self.ledger.is_empty();
        match admission {
            Admission::Admit(permit, observed) => {
                self.search_path.forget();
                if self.guard == Guard::Sure && request == Request::Execute {
                    self.guard = Guard::Ran;
                }
                let mut entry = InFlight::client(request, None);
                entry.leave = self.leave_for_reads();
                Step::Forward(Forward {
                    observed,
                    ..Forward::plain(permit, Some(entry))
                })
            }
            _ if waits => Step::AwaitReplies,
            Admission::Declare(value) => Step::Declare(value),
            Admission::Refuse(rejection) => Step::Refuse(rejection, refused),
            Admission::AskSearchPath(name) => self.ask_search_path(&name, refused),
        }
    }

    /// Asks the server, where that can bring an answer.
    fn ask_search_path(&self, name: &ObjectName, refused: Refused) -> Step {
        let known = matches!(self.search_path.get(), SearchPath::Known(_));
        if known || self.position.status == TransactionStatus::Failed {
            return Step::Refuse(Box::new(Rejection::search_path_unknown(name)), refused);
        }
        Step::AskSearchPath
    }

    /// Decides a text whose verdict is known.
    pub(super) fn decide(&mut self, judged: &Judged<'_>, request: Request) -> Step {
        let verdict = judged.verdict;
        let holds = touches_token(verdict);
        let names = controls(verdict).any(runs_a_name);
        // A failed transaction may be over by the time that this text arrives.
        let failed = self.position.status == TransactionStatus::Failed;
        if (holds || names || failed) && !self.ledger.is_empty() {
            return Step::AwaitReplies;
        }
        let refused = match request {
            Request::Execute => Refused::InPipeline,
            _ => Refused::Whole,
        };
        if let Some(rejection) = self.refusal_on_hold.take() {
            self.judged_as(judged);
            return Step::Refuse(rejection, refused);
        }
        let (permit, observed) = match self.plan(judged, request, refused) {
            Ok(admitted) => admitted,
            Err(step) => return step,
        };
        if binds_token(verdict)
            && !failed
            && self.will_hold_token(verdict)
            && let Some(adjustment) = self.adjustment_before_binding(request)
        {
            self.front = Front::Binds;
            return Step::Adjust(adjustment);
        }
        if let Some(step) = self.lower_first(verdict) {
            return step;
        }
        if shows_settings(verdict)
            && let Some(step) = self.publish_first()
        {
            return step;
        }
        self.shown.published = None;
        if observed.is_some() {
            self.judged_as(judged);
        }
        let may_move = |statement: &Statement| statement.effects.may_change_search_path();
        if verdict.statements.iter().any(may_move) || controls(verdict).any(may_move_names) {
            self.search_path.forget();
        }
        let ends = self.settings.is_in_doubt() && verdict.statements.iter().any(ends_or_splits);
        let then = if holds || ends {
            Then::Settle
        } else {
            Then::GoOn
        };
        if request == Request::Execute {
            let statements = verdict.statements.iter();
            self.guard = statements.fold(self.guard_now(), Guard::after);
        }
        let mut entry = InFlight::client(request, Some(Arc::clone(verdict)));
        if verdict.statements.iter().any(Statement::may_hide_a_write) {
            entry.leave = self.leave_for_reads();
        }
        Step::Forward(Forward {
            permit,
            entry: Some(entry),
            then,
            observed,
        })
    }

    /// What the fence says about a text: its permit, and the refusal that is only observed, or what comes first.
    fn plan(
        &mut self,
        judged: &Judged<'_>,
        request: Request,
        refused: Refused,
    ) -> Result<(Permit, Option<Box<Rejection>>), Step> {
        self.record_observed_end();
        let plan = self.fence.plan(judged.verdict, &self.situation());
        let waits = !self.ledger.is_empty();
        let step = match plan {
            Plan::Admit(permit, observed) => return Ok((permit, observed)),
            _ if waits => return Err(Step::AwaitReplies),
            Plan::Declare(value) => self.declare_step(value, request),
            Plan::AskSearchPath(name) => self.ask_search_path(&name, refused),
            Plan::Refuse(rejection) => Step::Refuse(rejection, refused),
        };
        if matches!(step, Step::Refuse(..)) {
            self.judged_as(judged);
        }
        Err(step)
    }

    /// What a text is judged by: what the server has confirmed where that holds for it, else the worst that may be.
    fn situation(&self) -> Situation<'_> {
        Situation {
            settings: &self.settings,
            accepted: &self.accepted,
            status: self.position.status,
            wrote: self.ledger.wrote(),
            pipeline: self.position.pipeline,
            path: self.search_path.get(),
            confirmed: self.ledger.settled().map(|settled| {
                Confirmed::new(settled, &self.names, &self.ledger, self.guard_now())
            }),
        }
    }

    /// What a read may do besides: a function of the database may write wherever the session may.
    fn leave_for_reads(&self) -> Leave {
        match self.standing() {
            Standing::MayWrite => Leave::ReadUnguarded,
            Standing::MayNotWrite => Leave::Read,
        }
    }

    /// Inside a transaction block that began read-only, the lift comes before the declaration: should it
    /// be too late for it, nothing was declared and no mark was raised. Should the declaration fail,
    /// its refusal fails the transaction, so nothing can use the lift.
    fn declare_step(&mut self, value: TokenValue, request: Request) -> Step {
        if self.fence.opens(&value)
            && let Some(Adjustment::Lift) = self.adjustment_before_binding(request)
        {
            self.front = Front::Binds;
            return Step::Adjust(Adjustment::Lift);
        }
        Step::Declare(value)
    }

    pub(super) fn judged_as(&mut self, judged: &Judged<'_>) {
        self.judged = LastJudged {
            class: Some(judged.verdict.kind()),
            text: excerpt(judged.text).to_vec(),
        };
    }

    pub(super) fn will_hold_token(&self, verdict: &Verdict) -> bool {
        let mut ahead = self.settings.clone();
        for control in verdict
            .statements
            .iter()
            .flat_map(|statement| &statement.controls)
        {
            self.fence.apply(control, &self.accepted, &mut ahead);
            if self.fence.may_write(ahead.token()) {
                return true;
            }
        }
        false
    }

    /// SHOW of a setting that only the proxy knows: the server must have it first.
    pub(super) fn publish_first(&self) -> Option<Step> {
        if self.position.status == TransactionStatus::Failed {
            return None;
        }
        let values = self.settings_to_show();
        (self.shown.published.as_ref() != Some(&values)).then(|| match self.ledger.is_empty() {
            true => Step::PublishSettings,
            false => Step::AwaitReplies,
        })
    }
}

/// The front of a text, for the record of a rejection.
pub(super) fn excerpt(text: &[u8]) -> &[u8] {
    text.get(..EXCERPT_MAX).unwrap_or(text)
}

fn controls(verdict: &Verdict) -> impl Iterator<Item = &Control> {
    verdict
        .statements
        .iter()
        .flat_map(|statement| &statement.controls)
}

/// Whether names without a schema may be looked up elsewhere after it, besides by its effects: what EXECUTE stands for
/// is not looked at, and a ROLLBACK TO may undo a SET.
const fn may_move_names(control: &Control) -> bool {
    matches!(control, Control::Execute { .. } | Control::RollbackTo(_))
}

/// Whether a text may change what the session holds, or needs to know it.
fn touches_token(verdict: &Verdict) -> bool {
    controls(verdict).any(|control| {
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

fn binds_token(verdict: &Verdict) -> bool {
    controls(verdict).any(|control| {
        matches!(
            control,
            Control::SetFencing {
                variable: FencingVariable::Token,
                ..
            }
        )
    })
}

pub(super) fn shows_settings(verdict: &Verdict) -> bool {
    controls(verdict).any(|control| {
        matches!(
            control,
            Control::ShowFencing(
                FencingShow::Token | FencingShow::Scope | FencingShow::Mark | FencingShow::Status
            )
        )
    })
}

fn ends_or_splits(statement: &Statement) -> bool {
    statement.controls.iter().any(Control::is_transaction)
}
