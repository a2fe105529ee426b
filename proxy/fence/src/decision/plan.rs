//! Plan for a whole text: admit it, refuse it, or declare a token first.

mod named;
mod steering;

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{Analysis, Control, Effects, FencingVariable, Lifetime, Statement};

use super::needs::Unmet;
use super::permit::{Admitted, Basis, Grounds, Leave};
use super::situation::Situation;
use crate::guard::{Guard, Unguarded, end_of_failed, ends_transaction, runs_if_failed};
use crate::prepared::Name;
use crate::rejection::{Rejection, WhyWrite};
use crate::state::{ServerText, SessionState};
use crate::text_names::TextNames;
use crate::wire::header::Header;
use crate::{HeldTokens, SessionFence, TokenValue};
use named::DEPTH_MAX;
use steering::Steering;

/// Effects on the session of a text that may pass.
#[derive(Debug)]
pub struct Plan {
    /// Permission to change data, unless its permit gives more.
    pub leave: Leave,
    /// Read-only guard after the text.
    pub guard: Guard,
    /// Whether a SET in it lets the session write, or a RESET before all that can. After that a token that comes back
    /// does not count: what came before it ran without it.
    pub declares: bool,
    /// Whether it changes or shows a token, or ends a transaction that has set one.
    pub settles: bool,
    /// Whether an EXECUTE in it may change names.
    pub changes_names: bool,
}

impl Situation<'_> {
    /// Decides the message of a text as a whole, and plans what follows: one refused statement refuses all of it.
    ///
    /// # Errors
    ///
    /// [`Unmet`].
    pub fn plan(&self, message: Header, verdict: &Analysis) -> Result<(Admitted, Plan), Unmet> {
        let mut walk = Walk {
            situation: self,
            fence: self.fence,
            statements: &verdict.statements,
            in_text: TextNames::default(),
            state: Cow::Borrowed(self.state),
            failed: self.state.is_failed(),
            wrote: self.wrote,
            may_hide: false,
            could_write: self.fence.may_write(self.state.token()),
            steering: Steering::new(self),
            used: Vec::new(),
            grounds: Grounds::none(),
            plan: Plan {
                leave: Leave::Read,
                guard: self.guard,
                declares: false,
                settles: false,
                changes_names: false,
            },
        };
        // With a declaration, the text goes to a session that may write from its first statement on.
        let last = last_opening(self, verdict);
        for (at, statement) in verdict.statements.iter().enumerate() {
            if at > 0 {
                walk.check_server_text()?;
            }
            if walk.failed && !runs_if_failed(statement) {
                walk.grounds.nothing_runs();
                break;
            }
            let later = last.filter(|last| at < *last);
            walk.step(statement, later.map(|_| Unguarded::TokenDeclaredLater))?;
        }
        let mut statements = verdict.statements.iter();
        if walk.could_write && statements.any(Statement::may_have_written) {
            walk.plan.leave = Leave::ReadUnguarded;
        }
        Ok((walk.grounds.admitted(message), walk.plan))
    }
}

impl SessionState {
    /// Whether a text depends on what requests in flight may change: the token, a name, or the open transaction.
    #[must_use]
    pub fn needs_certainty_for(&self, verdict: &Analysis) -> bool {
        // A failed transaction would undo the token by which later statements of the text are judged.
        let ends_doubt = verdict.statements.len() > 1 && self.is_in_doubt();
        let depends = |control: &Control| {
            control.touches_token()
                || matches!(control, Control::Execute { .. } | Control::Fetch { .. })
                || (ends_doubt && control.is_transaction())
        };
        // A failed transaction may be over when the text arrives.
        self.is_failed() || verdict.any_control(depends)
    }
}

/// Index of the last of several statements that declares a token which lets the session write.
fn last_opening(situation: &Situation<'_>, verdict: &Analysis) -> Option<usize> {
    if verdict.statements.len() < 2 || !verdict.any_control(Control::sets_token) {
        return None;
    }
    let fence = situation.fence;
    let mut ahead = situation.state.clone();
    let mut last = None;
    for (at, statement) in verdict.statements.iter().enumerate() {
        for control in &statement.controls {
            if let Control::SetFencing {
                variable: FencingVariable::Token,
                value,
                ..
            } = control
                && let Ok(Some(value)) = ahead.declared(fence, value)
                && fence.opens(&value)
            {
                last = Some(at);
            }
            ahead.apply(fence, situation.accepted, control);
        }
    }
    last
}

/// One walk over the statements of a text, with the settings in force at each of them.
struct Walk<'a> {
    situation: &'a Situation<'a>,
    fence: &'a SessionFence,
    statements: &'a [Statement],
    in_text: TextNames<'a>,
    state: Cow<'a, SessionState>,
    failed: bool,
    wrote: bool,
    /// Whether a write may hide in an earlier statement.
    may_hide: bool,
    /// Whether the session may write, or could at an earlier statement: PostgreSQL then lets it.
    could_write: bool,
    steering: Steering,
    /// Tokens by which earlier statements of the text may write.
    used: Vec<Arc<HeldTokens>>,
    grounds: Grounds,
    plan: Plan,
}

impl<'a> Walk<'a> {
    fn step(&mut self, statement: &'a Statement, later: Option<Unguarded>) -> Result<(), Unmet> {
        let had_failed = std::mem::take(&mut self.failed);
        // COMMIT of a failed transaction is a ROLLBACK.
        if had_failed && statement.controls.iter().any(ends_transaction) {
            self.wrote = false;
        }
        self.check_requirement(statement)?;
        let could_write = self.may_write();
        for control in &statement.controls {
            self.check_control(control)?;
            let rolled_back = had_failed.then(|| end_of_failed(control)).flatten();
            self.apply(control, rolled_back.as_ref().unwrap_or(control));
        }
        // A token is declared before the statement that sets it runs.
        let may_write = could_write || self.may_write();
        if !may_write {
            self.check_guard(statement, later)?;
        }
        self.plan.guard = self.steering.guard_after(self.plan.guard, statement);
        let goes_on = !statement.controls.iter().any(ends_transaction);
        self.wrote |= statement.may_have_written() && may_write && goes_on;
        self.may_hide |= statement.may_hide_a_write();
        Ok(())
    }

    fn may_write(&self) -> bool {
        self.fence.may_write(self.state.token())
    }

    /// Applies a control, given as written and as it takes effect.
    fn apply(&mut self, written: &'a Control, control: &Control) {
        let (state, accepted) = (self.situation.state, self.situation.accepted);
        self.in_text.apply(written);
        let touches = control.touches_token();
        self.plan.settles |= touches || (state.is_in_doubt() && control.is_transaction());
        if touches || self.statements.len() > 1 {
            self.state.to_mut().apply(self.fence, accepted, control);
            if self.may_write() {
                self.could_write = true;
                let comes_back = control.resets_token() && !self.may_hide;
                self.plan.declares |= control.sets_token() || comes_back;
            }
        }
        if ends_transaction(control) {
            self.wrote = false;
        }
    }

    /// Checks that the read-only guard is sure to be on if a statement may hide a write and the session may not
    /// write. `later` is the doubt that comes with a later statement.
    fn check_guard(
        &mut self,
        statement: &Statement,
        later: Option<Unguarded>,
    ) -> Result<(), Unmet> {
        let unconfirmed = self.situation.names.is_none();
        let in_doubt = self.plan.guard.in_doubt();
        let in_doubt = in_doubt.or(unconfirmed.then_some(Unguarded::BegunOtherwise));
        let why = match (self.could_write, later, in_doubt) {
            (false, Some(later), _) => later,
            (true, _, None) => Unguarded::TokenLaidDown,
            (_, _, Some(why)) => why,
            (false, None, None) => return Ok(()),
        };
        if statement.may_hide_a_write()
            && let Some(rejection) = self.fence.unguarded(self.state.token(), why)
        {
            return self.refuse(rejection);
        }
        Ok(())
    }

    fn check_requirement(&mut self, statement: &Statement) -> Result<(), Unmet> {
        let why = statement.why.as_ref().map(WhyWrite::Statement);
        self.check(&statement.effects, why)?;
        for control in &statement.controls {
            match control {
                // Judged by what the name stands for.
                Control::Execute { name } => {
                    self.check_execute(Name::statement(name.as_bytes()), DEPTH_MAX)?
                }
                // If the portal is one of the protocol. The query of a cursor was judged when it was declared.
                Control::Fetch { portal } => {
                    if let Some(meaning) = self.find(Name::portal(portal.as_bytes())) {
                        self.check_meaning(meaning, DEPTH_MAX)?;
                    }
                }
                // A write if there is something to commit.
                Control::Commit { .. } | Control::PrepareTransaction if self.wrote => {
                    let held = self.state.token();
                    self.fence.check_goes_on(&mut self.grounds, held)?;
                    self.used.extend(held.cloned());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check(&mut self, effects: &Effects, why: Option<WhyWrite<'_>>) -> Result<(), Unmet> {
        let held = self.state.token();
        let basis = self.fence.check(&mut self.grounds, effects, why, held)?;
        if basis != Basis::NotRequired {
            self.wrote = true;
            self.used.extend(held.cloned());
        }
        Ok(())
    }

    fn check_control(&mut self, control: &Control) -> Result<(), Unmet> {
        match control {
            Control::Mistake(mistake) => self.refuse(Rejection::mistake(mistake)),
            Control::SetFencing {
                variable,
                value,
                lifetime,
            } => match variable {
                FencingVariable::Token => self.check_token(value, *lifetime),
                FencingVariable::Scope => self.check_scope(value, *lifetime),
            },
            Control::ResetFencing {
                variable: FencingVariable::Token,
                ..
            }
            | Control::ResetAll
            | Control::DiscardAll => match self.state.undeclared_startup() {
                Some(held) => {
                    let value = held.value();
                    self.refuse_if_written().and(Err(Unmet::Declare(value)))
                }
                None => self.check_change(self.state.startup_token().cloned()),
            },
            _ => Ok(()),
        }
    }

    /// Whether the text is one statement with one control.
    fn is_single(&self) -> bool {
        matches!(self.statements, [only] if only.controls.len() == 1)
    }

    /// Whether the text is a transaction of its own, in which SET LOCAL only warns.
    fn is_lost(&self) -> bool {
        self.statements.len() == 1 && steering::is_idle(self.situation)
    }

    /// Refuses a statement that would find another text in the server than the session's tokens (the take of its
    /// startup packet, or none in a shared connection): a RESET or rollback before it in the text brings that back.
    fn check_server_text(&self) -> Result<(), Unmet> {
        if self.state.server_text() == ServerText::Other {
            self.fence.brought_back_before_others()?;
        }
        Ok(())
    }

    /// Refuses a SET. If that is only observed, it passes and declares nothing.
    fn refuse_set(&mut self, rejection: Rejection) -> Result<(), Unmet> {
        self.refuse(rejection)?;
        self.check_change(None)
    }

    fn refuse(&mut self, rejection: Rejection) -> Result<(), Unmet> {
        let rejection = Box::new(rejection);
        Ok(self.fence.refuse_or_observe(&mut self.grounds, rejection)?)
    }

    fn check_scope(&mut self, text: &str, lifetime: Lifetime) -> Result<(), Unmet> {
        if text.is_empty() {
            return Ok(());
        }
        match Scope::from_str(text) {
            Ok(scope) => match self.fence.may_declare(&scope, None, lifetime) {
                Ok(()) => Ok(()),
                Err(rejection) => self.refuse(*rejection),
            },
            Err(error) => self.refuse(Rejection::invalid_value("fencing.scope", text, error)),
        }
    }

    fn check_token(&mut self, text: &str, lifetime: Lifetime) -> Result<(), Unmet> {
        let (fence, accepted) = (self.fence, self.situation.accepted);
        let value = self.state.declared(fence, text);
        let takes = matches!(&value, Ok(Some(value)) if value.takes());
        if takes && !self.is_single() {
            return self.refuse_set(Rejection::taken_beside_others());
        }
        if lifetime == Lifetime::Local && self.is_lost() {
            return Ok(());
        }
        let value = match value {
            Ok(value) => value.and_then(|value| self.state.resolve(value)),
            Err(error) => {
                return self.refuse(Rejection::invalid_value("fencing.token", text, error));
            }
        };
        let Some(value) = value else {
            return self.check_change(None);
        };
        if let Err(rejection) = fence.may_set_all(&value, lifetime) {
            return self.refuse_set(*rejection);
        }
        if let Err(rejection) = fence.check_marks(&value) {
            return self.refuse(*rejection);
        }
        let next = self.state.find(accepted, &value);
        match next.filter(|next| next.tokens().iter().all(|one| fence.is_accepted(one))) {
            Some(next) => self.check_change(Some(Arc::clone(next))),
            None => {
                self.refuse_if_written()?;
                if self.deposes_itself(&value) {
                    self.refuse(Rejection::deposes_earlier_statements())?;
                }
                Err(Unmet::Declare(value))
            }
        }
    }

    /// Whether the declaration, which comes before the whole text, would make a token stale that the text has used.
    fn deposes_itself(&self, value: &TokenValue) -> bool {
        let mut used = self.used.iter().flat_map(|held| held.tokens());
        used.any(|held| {
            let mut claims = value.claims().iter();
            claims.any(|(scope, claim)| {
                scope == held.mark.scope() && claim.token() > Some(held.token)
            })
        })
    }

    /// Checks that a SET or RESET which puts other tokens in force comes before any write.
    fn check_change(&mut self, to: Option<Arc<HeldTokens>>) -> Result<(), Unmet> {
        if self.state.token().map(Arc::as_ptr) == to.as_ref().map(Arc::as_ptr) {
            return Ok(());
        }
        self.refuse_if_written()
    }

    fn refuse_if_written(&mut self) -> Result<(), Unmet> {
        if self.wrote {
            self.refuse(Rejection::token_change_after_write())
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
