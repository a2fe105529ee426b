//! What a text or a class of request needs before it may be sent, given where the session stands.

use std::sync::Arc;

use pgpalisade_policies::{
    Control, Effects, FencingShow, FencingVariable, Opaque, Statement, Verdict, scan,
};

use super::steps::{Forward, Judged, Refused, Step, Then};
use super::{Front, Relay};
use crate::fence::{Permit, Plan, Situation, TokenValue};
use crate::session::Pipeline;
use crate::session::access::{Adjustment, Place, Standing};
use crate::session::ledger::{InFlight, Request};
use crate::session::names::EXCERPT_MAX;
use crate::wire::backend::TransactionStatus;
use crate::wire::frontend::FrontendTag;

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
    /// A change of the access mode that is due before anything else is sent.
    pub(super) fn adjust_first(&mut self, tag: FrontendTag) -> Option<Step> {
        let passes = matches!(
            tag,
            FrontendTag::Sync
                | FrontendTag::Flush
                | FrontendTag::Terminate
                | FrontendTag::CopyData
                | FrontendTag::CopyDone
                | FrontendTag::CopyFail
        );
        let failed = self.position.status == TransactionStatus::Failed;
        if passes || failed || self.front == Front::Binds {
            return None;
        }
        let adjustment = self.due_adjustment(self.standing())?;
        if adjustment == Adjustment::Lower {
            // Only what runs a query needs it: see `lower_first`.
            return None;
        }
        if tag.is_extended() {
            // Should it fail, the client's own Sync ends the pipeline that its message begins.
            self.position.pipeline = match adjustment {
                Adjustment::Lift => Pipeline::Open,
                Adjustment::Default(_) | Adjustment::Lower => self.position.pipeline,
            };
        }
        Some(Step::Adjust(adjustment))
    }

    pub(super) fn due_adjustment(&self, standing: Standing) -> Option<Adjustment> {
        // While requests are in flight the session's state is not known, and nothing can have
        // changed it: what could was waited for.
        if !self.ledger.is_empty() || self.ledger.is_copying_in() {
            return None;
        }
        let place = if self.position.is_inside() {
            Place::Inside
        } else {
            Place::Outside
        };
        self.access.adjustment(standing, place)
    }

    /// A session that has lost its token inside a transaction: before it runs anything that could hide
    /// a write, the transaction becomes read-only. A statement that only steers the session runs
    /// without: in a pipeline some of them must not follow another statement.
    fn lower_first(&self, verdict: &Verdict) -> Option<Step> {
        let steers = |statement: &Statement| !statement.controls.is_empty();
        if verdict.statements.iter().all(steers)
            || self.front == Front::Binds
            || self.position.status == TransactionStatus::Failed
        {
            return None;
        }
        match self.due_adjustment(self.standing()) {
            Some(Adjustment::Lower) => Some(Step::Adjust(Adjustment::Lower)),
            _ => None,
        }
    }

    pub(super) fn standing(&self) -> Standing {
        match self.worker.fence.admit_any(self.settings.token()) {
            Some(Permit { .. }) => Standing::MayWrite,
            None => Standing::MayNotWrite,
        }
    }

    /// The way of nearly every message: the session may write, and the text does nothing to it.
    #[inline]
    pub(super) fn fast_permit(&self, text: &[u8]) -> Option<Permit> {
        match scan::needs_parse(text) {
            scan::NeedsParse::Yes => None,
            scan::NeedsParse::No => self.worker.fence.admit_any(self.settings.token()),
        }
    }

    pub(super) fn verdict(&self, text: Result<&[u8], Opaque>) -> Arc<Verdict> {
        match text {
            Ok(text) => self
                .worker
                .verdicts
                .borrow_mut()
                .get_or_classify(text, self.encoding),
            Err(why) => Arc::new(Verdict::opaque(why)),
        }
    }

    pub(super) fn decide_effects(
        &mut self,
        effects: &Effects,
        request: Request,
        refused: Refused,
    ) -> Step {
        match self
            .worker
            .fence
            .admit_effects(effects, self.settings.token())
        {
            Ok(permit) => Step::Forward(Forward::plain(
                permit,
                Some(InFlight::client(request, None)),
            )),
            Err(_) if !self.ledger.is_empty() => Step::AwaitReplies,
            Err(rejection) => Step::Refuse(rejection, refused),
        }
    }

    /// Decides a text whose verdict is known.
    pub(super) fn decide(&mut self, judged: &Judged<'_>, request: Request) -> Step {
        let verdict = judged.verdict;
        let holds = touches_token(verdict);
        // A failed transaction may be over by the time that this text arrives.
        let failed = self.position.status == TransactionStatus::Failed;
        if (holds || failed) && !self.ledger.is_empty() {
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
        let situation = Situation {
            settings: &self.settings,
            accepted: &self.accepted,
            names: &self.names,
            status: self.position.status,
            wrote: self.wrote,
            pipeline: self.position.pipeline,
        };
        let permit = match self.worker.fence.plan(verdict, &situation) {
            Plan::Admit(permit) => permit,
            Plan::Declare(value) => return self.declare_step(value, request),
            Plan::Refuse(_) if !self.ledger.is_empty() => return Step::AwaitReplies,
            Plan::Refuse(rejection) => {
                self.judged_as(judged);
                return Step::Refuse(rejection, refused);
            }
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
        let ends = self.settings.is_in_doubt() && verdict.statements.iter().any(ends_or_splits);
        let then = if holds || ends {
            Then::Settle
        } else {
            Then::GoOn
        };
        let entry = InFlight::client(request, Some(Arc::clone(verdict)));
        Step::Forward(Forward {
            permit,
            entry: Some(entry),
            then,
        })
    }

    /// Inside a transaction block that began read-only, the lift comes before the declaration: should it
    /// be too late for it, nothing was declared and no mark was raised. Should the declaration fail,
    /// its refusal fails the transaction, so nothing can use the lift.
    fn declare_step(&mut self, value: TokenValue, request: Request) -> Step {
        let default_scope = self.worker.fence.default_scope();
        let may_write = value
            .tokens()
            .iter()
            .any(|(scope, _)| scope == default_scope);
        if may_write && let Some(Adjustment::Lift) = self.adjustment_before_binding(request) {
            self.front = Front::Binds;
            return Step::Adjust(Adjustment::Lift);
        }
        Step::Declare(value)
    }

    /// A text that binds a token is sent to a session that may write already, so that what follows
    /// in the same text can. In an open pipeline the transaction may have taken its snapshot, so
    /// there it waits until something follows that needs it.
    pub(super) fn adjustment_before_binding(&self, request: Request) -> Option<Adjustment> {
        let in_pipeline_only =
            request == Request::Execute && self.position.status == TransactionStatus::Idle;
        if in_pipeline_only {
            return None;
        }
        self.due_adjustment(Standing::MayWrite)
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
            self.worker.fence.apply(control, &self.accepted, &mut ahead);
            if self.worker.fence.admit_any(ahead.token()).is_some() {
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
