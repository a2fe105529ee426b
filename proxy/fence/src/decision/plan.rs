//! Decision on a whole text: admit it, refuse it, or declare a token first.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{
    Analysis, Control, Effects, FencingVariable, Lifetime, Mistake, Mode, Statement,
};

use super::needs::{Decision, Unmet};
use super::permit::{Basis, Grounds};
use super::situation::{Confirmed, Pipeline, Situation, Wrote};
use crate::guard::{Guard, Unguarded, ends_transaction};
use crate::prepared::{Name, PreparedText};
use crate::rejection::{Rejection, WhyWrite};
use crate::state::{ServerText, SessionState, end_of_failed};
use crate::text_names::{InText, TextNames};
use crate::wire::backend::TransactionStatus;
use crate::wire::header::Header;
use crate::{HeldTokens, SessionFence, TokenValue};

/// Levels of EXECUTE in an EXECUTE that are followed.
const DEPTH_MAX: u8 = 4;

/// Whether the server executes a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    Yes,
    /// The transaction has failed: nothing from here on.
    No,
}

impl Situation<'_> {
    /// Decides the message of a text as a whole: one refused statement refuses all of it.
    ///
    /// # Errors
    ///
    /// [`Unmet`].
    pub fn decide(&self, message: Header, verdict: &Analysis) -> Decision {
        let mut walk = Walk {
            fence: self.fence,
            confirmed: self.confirmed,
            in_text: TextNames::default(),
            accepted: self.accepted,
            guard: self
                .confirmed
                .map_or(Guard::IN_DOUBT, |confirmed| confirmed.guard),
            state: Cow::Borrowed(self.state),
            failed: self.state.is_failed(),
            wrote: self.wrote,
            grounds: Grounds::none(),
            alone: verdict.statements.len() == 1,
            could_write: CouldWrite::No,
            local_is_lost: verdict.statements.len() == 1
                && self.state.status() == TransactionStatus::Idle
                && self.pipeline == Pipeline::Closed,
        };
        // With a declaration, the text goes to a session that may write from its first statement on.
        let last = last_opening(self, verdict);
        for (at, statement) in verdict.statements.iter().enumerate() {
            walk.could_write = match (walk.could_write, last) {
                (CouldWrite::BehindItsToken, _) => CouldWrite::BehindItsToken,
                (_, Some(last)) if at < last => CouldWrite::BeforeItsToken,
                _ => CouldWrite::No,
            };
            if at > 0 {
                walk.check_server_text()?;
            }
            if walk.step(statement)? == Runs::No {
                walk.grounds.nothing_runs();
                break;
            }
        }
        Ok(walk.grounds.admitted(message))
    }
}

/// Index of the last statement that declares a token which lets the session write.
fn last_opening(situation: &Situation<'_>, verdict: &Analysis) -> Option<usize> {
    if !verdict.any_control(sets_fencing) {
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
                && let Ok(Some(value)) = TokenValue::parse(value, ahead.scope(fence))
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
    fence: &'a SessionFence,
    confirmed: Option<Confirmed<'a>>,
    in_text: TextNames<'a>,
    accepted: &'a [Arc<HeldTokens>],
    guard: Guard,
    state: Cow<'a, SessionState>,
    failed: bool,
    wrote: Wrote,
    grounds: Grounds,
    /// Whether the text has no other statement.
    alone: bool,
    could_write: CouldWrite,
    /// Whether it is a transaction of its own, in which SET LOCAL only warns.
    local_is_lost: bool,
}

/// Whether PostgreSQL lets the session write at a statement that has no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CouldWrite {
    No,
    /// A later statement of the text declares one.
    BeforeItsToken,
    /// An earlier statement had one.
    BehindItsToken,
}

impl<'a> Walk<'a> {
    fn step(&mut self, statement: &'a Statement) -> Result<Runs, Unmet> {
        let had_failed = self.failed;
        if self.failed {
            // An unread statement may begin with a ROLLBACK.
            if !statement.is_unread() && !statement.controls.iter().any(ends_failure) {
                return Ok(Runs::No);
            }
            self.failed = false;
            // COMMIT of a failed transaction is a ROLLBACK.
            if statement.controls.iter().any(ends_transaction) {
                self.wrote = Wrote::No;
            }
        }
        self.check_requirement(statement)?;
        self.check_guard(statement)?;
        self.guard = self.guard.after(statement);
        if self.fence.may_write(self.state.token()) {
            self.could_write = CouldWrite::BehindItsToken;
            if statement.may_hide_a_write() {
                self.wrote = Wrote::Yes;
            }
        }
        for control in &statement.controls {
            if takes(control) && !(self.alone && statement.controls.len() == 1) {
                self.refuse_take()?
            } else {
                self.check_control(control)?
            }
            self.in_text.apply(control);
            if !self.alone {
                let rolled_back = had_failed.then(|| end_of_failed(control)).flatten();
                let control = rolled_back.as_ref().unwrap_or(control);
                let state = self.state.to_mut();
                state.apply(self.fence, self.accepted, control);
            }
            if ends_transaction(control) {
                self.wrote = Wrote::No;
            }
        }
        Ok(Runs::Yes)
    }

    /// Checks that the read-only guard is sure to be on if a statement may hide a write and the session may not
    /// write.
    fn check_guard(&mut self, statement: &Statement) -> Result<(), Unmet> {
        let why = match (self.could_write, self.guard.in_doubt()) {
            (CouldWrite::BeforeItsToken, _) => Unguarded::TokenDeclaredLater,
            (CouldWrite::BehindItsToken, None) => Unguarded::TokenLaidDown,
            (_, Some(why)) => why,
            (CouldWrite::No, None) => return Ok(()),
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
                Control::Fetch { portal } => self.check_fetch(Name::portal(portal.as_bytes()))?,
                // A write if there is something to commit.
                Control::Commit { .. } | Control::PrepareTransaction
                    if self.wrote == Wrote::Yes =>
                {
                    let held = self.state.token();
                    self.fence.check_goes_on(&mut self.grounds, held)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_execute(&mut self, name: Name<'_>, depth: u8) -> Result<(), Unmet> {
        match self.in_text.find(name) {
            InText::Effects(effects) => self.check(effects, None),
            InText::Unknown => self.check(&Effects::unknown(None), None),
            InText::Nothing => {
                let meaning = self.find(name).unwrap_or(&PreparedText::Unknown);
                self.check_meaning(meaning, depth)
            }
        }
    }

    /// Checks what FETCH or MOVE runs, if the portal is one of the protocol. The query of a cursor was judged when it
    /// was declared.
    fn check_fetch(&mut self, name: Name<'_>) -> Result<(), Unmet> {
        self.find(name)
            .map_or(Ok(()), |meaning| self.check_meaning(meaning, DEPTH_MAX))
    }

    /// What a name stands for, if it is known.
    fn find(&self, name: Name<'_>) -> Option<&'a PreparedText> {
        match self.confirmed {
            Some(confirmed) => confirmed.find(name),
            None => Some(&PreparedText::MaySteer),
        }
    }

    /// Checks what EXECUTE or FETCH runs. It may change data as the session may, but not the session: that is noticed
    /// only in protocol messages and in statements of their own.
    fn check_meaning(&mut self, meaning: &'a PreparedText, depth: u8) -> Result<(), Unmet> {
        let Some(verdict) = meaning.verdict() else {
            self.check(&meaning.effects(), None)?;
            return match meaning {
                PreparedText::MaySteer => self.refuse(Rejection::changes_by_name()),
                _ => Ok(()),
            };
        };
        for statement in &verdict.statements {
            self.check(&statement.effects, None)?;
            for control in &statement.controls {
                self.check_named_control(control, depth)?;
            }
        }
        Ok(())
    }

    fn check_named_control(&mut self, control: &'a Control, depth: u8) -> Result<(), Unmet> {
        match control {
            Control::SetFencing { variable, .. } => {
                self.refuse(Rejection::mistake(&Mistake::DoesNotDeclare(*variable)))
            }
            Control::Mistake(mistake) => self.refuse(Rejection::mistake(mistake)),
            Control::ShowFencing(_) | Control::ShowAccess(_) => Ok(()),
            // The portal that it runs is not looked up.
            Control::Fetch { .. } => self.check(&Effects::unknown(None), None),
            Control::Execute { name } if depth > 0 => {
                self.check_execute(Name::statement(name.as_bytes()), depth - 1)
            }
            // Names are not followed here. A session that holds all tokens does not need them, and later they count
            // as unknown.
            control if changes_names(control) && self.fence.holds_all(self.state.token()) => {
                self.in_text.forget();
                Ok(())
            }
            _ => self.refuse(Rejection::changes_by_name()),
        }
    }

    fn check(&mut self, effects: &Effects, why: Option<WhyWrite<'_>>) -> Result<(), Unmet> {
        let held = self.state.token();
        let basis = self.fence.check(&mut self.grounds, effects, why, held)?;
        if basis != Basis::NotRequired {
            self.wrote = Wrote::Yes;
        }
        Ok(())
    }

    fn check_control(&mut self, control: &Control) -> Result<(), Unmet> {
        match control {
            Control::SetFencing {
                variable: FencingVariable::Scope,
                value,
                lifetime,
            } if !value.is_empty() => self.check_scope(value, *lifetime),
            Control::SetFencing {
                variable: FencingVariable::Scope,
                ..
            } => Ok(()),
            Control::Mistake(mistake) => self.refuse(Rejection::mistake(mistake)),
            Control::SetFencing {
                lifetime: Lifetime::Local,
                ..
            } if self.local_is_lost => Ok(()),
            Control::SetFencing {
                value, lifetime, ..
            } => self.check_token(value, *lifetime),
            Control::ResetFencing {
                variable: FencingVariable::Token,
                ..
            }
            | Control::ResetAll
            | Control::DiscardAll => {
                self.check_change(change(self.state.token(), self.state.startup_token()))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a statement that would find the take of the startup packet in the server, not the tokens: a RESET or
    /// rollback before it in the text brings that back.
    fn check_server_text(&self) -> Result<(), Unmet> {
        match self.state.server_text() {
            ServerText::Tokens => Ok(()),
            ServerText::Take => Ok(self.fence.taken_beside_others()?),
        }
    }

    /// Refuses a take in a text that does more. If that is only observed, it passes and declares nothing.
    fn refuse_take(&mut self) -> Result<(), Unmet> {
        self.refuse(Rejection::taken_beside_others())?;
        self.check_change(change(self.state.token(), None))
    }

    fn refuse(&mut self, rejection: Rejection) -> Result<(), Unmet> {
        Ok(self
            .fence
            .refuse_or_observe(&mut self.grounds, Box::new(rejection))?)
    }

    fn check_scope(&mut self, text: &str, lifetime: Lifetime) -> Result<(), Unmet> {
        match Scope::from_str(text) {
            Ok(scope) => match self.fence.may_declare(&scope, None, lifetime) {
                Ok(()) => Ok(()),
                Err(rejection) => self.refuse(*rejection),
            },
            Err(error) => self.refuse(Rejection::invalid_value("fencing.scope", text, error)),
        }
    }

    fn check_token(&mut self, text: &str, lifetime: Lifetime) -> Result<(), Unmet> {
        let scope = self.state.scope(self.fence);
        let value = match TokenValue::parse(text, scope) {
            Ok(Some(value)) => value,
            Ok(None) => return self.check_change(change(self.state.token(), None)),
            Err(error) => {
                return self.refuse(Rejection::invalid_value("fencing.token", text, error));
            }
        };
        if let Err(rejection) = self.fence.may_declare_all(&value, lifetime) {
            self.refuse(*rejection)?;
            // The refusal is only observed: the SET passes and declares nothing.
            return self.check_change(change(self.state.token(), None));
        }
        for (scope, claim) in value.claims() {
            // If it is only observed, the declaration says so, once.
            let enforced = self.fence.mode(Some(scope)) == Mode::Enforce;
            if enforced
                && let Some(token) = claim.token()
                && let Some(mark) = self.fence.fence().mark_above(scope, token)
            {
                return self.refuse(Rejection::behind(scope, *claim, mark));
            }
        }
        let next = self
            .state
            .find(self.accepted, &value)
            .filter(|next| next.tokens().iter().all(|one| self.fence.is_accepted(one)));
        let change = match next {
            Some(_) => change(self.state.token(), next),
            None => Change::Other,
        };
        let is_accepted = next.is_some();
        self.check_change(change)?;
        if is_accepted {
            Ok(())
        } else {
            Err(Unmet::Declare(value))
        }
    }

    fn check_change(&mut self, change: Change) -> Result<(), Unmet> {
        match self.wrote {
            Wrote::Yes if change == Change::Other => {
                self.refuse(Rejection::token_change_after_write())
            }
            _ => Ok(()),
        }
    }
}

/// Whether a statement sets `fencing.token` to a value with a take, in whatever scope.
#[must_use]
pub fn takes(control: &Control) -> bool {
    let Control::SetFencing {
        variable: FencingVariable::Token,
        value,
        ..
    } = control
    else {
        return false;
    };
    let value = TokenValue::parse(value, &Scope::default());
    value.ok().flatten().is_some_and(|value| value.takes())
}

const fn sets_fencing(control: &Control) -> bool {
    matches!(control, Control::SetFencing { .. })
}

/// Whether it defines or drops the name of a prepared statement.
#[must_use]
pub const fn changes_names(control: &Control) -> bool {
    matches!(
        control,
        Control::Prepare { .. } | Control::Deallocate { .. } | Control::DeallocateAll
    )
}

/// Whether it runs what a name stands for.
#[must_use]
pub const fn runs_a_name(control: &Control) -> bool {
    matches!(control, Control::Execute { .. } | Control::Fetch { .. })
}

/// Whether the server executes it in a failed transaction: all but ROLLBACK TO then do a ROLLBACK, even PREPARE
/// TRANSACTION: <https://www.postgresql.org/docs/current/sql-prepare-transaction.html>
const fn ends_failure(control: &Control) -> bool {
    ends_transaction(control) || matches!(control, Control::RollbackTo(_))
}

/// Whether a SET or RESET would put another token in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Same,
    Other,
}

fn change(from: Option<&Arc<HeldTokens>>, to: Option<&Arc<HeldTokens>>) -> Change {
    match (from, to) {
        (None, None) => Change::Same,
        (Some(from), Some(to)) if Arc::ptr_eq(from, to) => Change::Same,
        _ => Change::Other,
    }
}

#[cfg(test)]
mod tests;
