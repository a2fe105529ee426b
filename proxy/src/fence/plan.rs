//! What to do with a whole text: admit it, refuse it, or declare a token first.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{
    Control, Effects, FencingVariable, Lifetime, Mistake, Mode, ObjectName, SearchPath, Statement,
    Verdict,
};

use super::requirement::Unguarded;
use super::requirement::Unmet;
use super::situation::{Confirmed, Guard, Situation};
use super::text_names::{InText, TextNames};
use super::{Basis, Holding, Permit, SessionFence, TokenValue};
use crate::rejection::Rejection;
use crate::session::Pipeline;
use crate::session::ledger::Wrote;
use crate::session::names::{Meaning, Name};
use crate::session::settings::Settings;
use crate::wire::backend::TransactionStatus;

/// What is to be done with a text.
#[derive(Debug)]
pub enum Plan {
    /// Send it. Where it would be refused were its scope not only observed, the rejection.
    Admit(Permit, Option<Box<Rejection>>),
    /// Have these tokens accepted for the session, then ask again.
    Declare(TokenValue),
    /// Refuse it as a whole.
    Refuse(Box<Rejection>),
    /// The search path must be known first: it depends on the schema of this table.
    AskSearchPath(ObjectName),
}

/// Why a walk over the statements ended before the last one.
enum Stop {
    Unmet(Unmet),
    /// The transaction has failed: the server executes nothing from here on.
    NothingRuns,
}

impl From<Unmet> for Stop {
    fn from(unmet: Unmet) -> Self {
        Self::Unmet(unmet)
    }
}

impl From<Box<Rejection>> for Stop {
    fn from(rejection: Box<Rejection>) -> Self {
        Self::Unmet(Unmet::Refuse(rejection))
    }
}

impl SessionFence {
    /// Decides a text as a whole: one refused statement refuses all of it.
    #[must_use]
    pub fn plan(&self, verdict: &Verdict, situation: &Situation<'_>) -> Plan {
        let mut walk = Walk {
            fence: self,
            confirmed: situation.confirmed,
            in_text: TextNames::default(),
            accepted: situation.accepted,
            path: situation.path,
            guard: situation
                .confirmed
                .map_or(Guard::InDoubt, |confirmed| confirmed.guard()),
            settings: Cow::Borrowed(situation.settings),
            failed: situation.status == TransactionStatus::Failed,
            wrote: situation.wrote,
            basis: Basis::NotRequired,
            observed: None,
            alone: verdict.statements.len() == 1,
            could_write: CouldWrite::No,
            local_is_lost: verdict.statements.len() == 1
                && situation.status == TransactionStatus::Idle
                && situation.pipeline == Pipeline::Closed,
        };
        // The text is sent to a session that may write from its first statement on.
        let last = self.last_opening(verdict, situation.settings);
        for (at, statement) in verdict.statements.iter().enumerate() {
            walk.could_write = match (walk.could_write, last) {
                (CouldWrite::BehindItsToken, _) => CouldWrite::BehindItsToken,
                (_, Some(last)) if at < last => CouldWrite::BeforeItsToken,
                _ => CouldWrite::No,
            };
            match walk.step(statement) {
                Ok(()) => {}
                Err(Stop::Unmet(Unmet::Declare(value))) => return Plan::Declare(value),
                Err(Stop::Unmet(Unmet::Refuse(rejection))) => return Plan::Refuse(rejection),
                Err(Stop::Unmet(Unmet::AskSearchPath(name))) => return Plan::AskSearchPath(name),
                Err(Stop::NothingRuns) => {
                    walk.basis = Basis::FailedTransaction;
                    break;
                }
            }
        }
        Plan::Admit(Permit::new(walk.basis), walk.observed)
    }
}

impl SessionFence {
    /// The last statement that declares a token that lets the session write.
    fn last_opening(&self, verdict: &Verdict, settings: &Settings<Arc<Holding>>) -> Option<usize> {
        let mut scope = Cow::Borrowed(self.session_scope(settings));
        let mut last = None;
        for (at, statement) in verdict.statements.iter().enumerate() {
            for control in &statement.controls {
                let Control::SetFencing {
                    variable, value, ..
                } = control
                else {
                    continue;
                };
                match variable {
                    FencingVariable::Scope => {
                        let named = Scope::from_str(value).ok().map(Cow::Owned);
                        scope = named.unwrap_or(Cow::Borrowed(self.default_scope()));
                    }
                    FencingVariable::Token => {
                        let value = TokenValue::parse(value, &scope).ok().flatten();
                        if value.is_some_and(|value| self.opens(&value)) {
                            last = Some(at);
                        }
                    }
                }
            }
        }
        last
    }
}

/// One walk over the statements of a text, with the settings as they will be at each of them.
struct Walk<'a> {
    fence: &'a SessionFence,
    confirmed: Option<Confirmed<'a>>,
    in_text: TextNames<'a>,
    accepted: &'a [Arc<Holding>],
    path: SearchPath<'a>,
    guard: Guard,
    settings: Cow<'a, Settings<Arc<Holding>>>,
    failed: bool,
    wrote: Wrote,
    basis: Basis,
    observed: Option<Box<Rejection>>,
    /// The text has no other statement.
    alone: bool,
    could_write: CouldWrite,
    /// It is a transaction of its own, in which a SET LOCAL does nothing but warn.
    local_is_lost: bool,
}

/// Whether PostgreSQL lets the session write although it has no token there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CouldWrite {
    No,
    /// A later statement of the text declares one.
    BeforeItsToken,
    /// It has had one at an earlier statement.
    BehindItsToken,
}

impl<'a> Walk<'a> {
    fn step(&mut self, statement: &'a Statement) -> Result<(), Stop> {
        if self.failed {
            if !statement.controls.iter().any(ends_failure) {
                return Err(Stop::NothingRuns);
            }
            self.failed = false;
            // A COMMIT of it is a ROLLBACK.
            if statement.controls.iter().any(ends_transaction) {
                self.wrote = Wrote::No;
            }
        }
        self.check_requirement(statement)?;
        self.check_backstop(statement)?;
        self.guard = self.guard.after(statement);
        if self.fence.may_write(self.settings.token()) {
            self.could_write = CouldWrite::BehindItsToken;
            if statement.may_hide_a_write() {
                self.wrote = Wrote::Yes;
            }
        }
        for control in &statement.controls {
            self.check_control(control)?;
            self.in_text.apply(control);
            if !self.alone {
                self.fence
                    .apply(control, self.accepted, self.settings.to_mut());
            }
            if ends_transaction(control) {
                self.wrote = Wrote::No;
            }
        }
        Ok(())
    }

    /// Read-only mode guards a session that may not write, as long as it is sure to be on.
    fn check_backstop(&mut self, statement: &Statement) -> Result<(), Stop> {
        let why = match (self.guard, self.could_write) {
            (Guard::InDoubt, _) => Unguarded::TransactionEnded,
            (_, CouldWrite::BeforeItsToken) => Unguarded::TokenDeclaredLater,
            (_, CouldWrite::BehindItsToken) => Unguarded::TokenLaidDown,
            (Guard::Sure | Guard::Ran, CouldWrite::No) => return Ok(()),
        };
        if statement.may_hide_a_write()
            && let Some(rejection) = self.fence.unguarded(self.settings.token(), why)
        {
            return self.refuse(rejection);
        }
        Ok(())
    }

    fn check_requirement(&mut self, statement: &Statement) -> Result<(), Stop> {
        let why = statement.why.as_ref().map(|why| why as &dyn fmt::Display);
        self.check(&statement.effects, why)?;
        for control in &statement.controls {
            match control {
                // What its name stands for.
                Control::Execute { name } => {
                    self.check_execute(Name::statement(name.as_bytes()))?
                }
                Control::Fetch { portal } => self.check_fetch(Name::portal(portal.as_bytes()))?,
                // A write where there is something to commit.
                Control::Commit { .. } | Control::PrepareTransaction
                    if self.wrote == Wrote::Yes =>
                {
                    let holding = self.settings.token();
                    self.basis = self.fence.check_goes_on(holding, &mut self.observed)?;
                }
                _ => {}
            }
        }
        // Where names are looked up is known up to the first statement that may change it.
        if statement.effects.may_change_search_path() {
            self.path = SearchPath::Unknown;
        }
        Ok(())
    }

    fn check_execute(&mut self, name: Name<'_>) -> Result<(), Stop> {
        match self.in_text.find(name) {
            InText::Effects(effects) => self.check(effects, None),
            InText::Unknown => self.check(&Effects::unknown(None), None),
            InText::Nothing => self.check_meaning(self.find(name).unwrap_or(&Meaning::Unknown)),
        }
    }

    /// What FETCH or MOVE runs, where the portal is one of the protocol. The query of a cursor was judged when it was
    /// declared.
    fn check_fetch(&mut self, name: Name<'_>) -> Result<(), Stop> {
        self.find(name)
            .map_or(Ok(()), |meaning| self.check_meaning(meaning))
    }

    /// What a name stands for; `None` where that is nothing that is known.
    fn find(&self, name: Name<'_>) -> Option<&'a Meaning> {
        match self.confirmed {
            Some(confirmed) => confirmed.find(name),
            None => Some(&Meaning::MaySteer),
        }
    }

    /// What EXECUTE or FETCH runs: it may change data as the session may, but not the session itself, for that is
    /// noticed in messages of the protocol and in statements of their own.
    fn check_meaning(&mut self, meaning: &Meaning) -> Result<(), Stop> {
        let Some(verdict) = meaning.verdict() else {
            self.check(&meaning.effects(), None)?;
            return match meaning {
                Meaning::MaySteer => self.refuse(Rejection::changes_by_name()),
                _ => Ok(()),
            };
        };
        for statement in &verdict.statements {
            self.check(&statement.effects, None)?;
            for control in &statement.controls {
                match control {
                    Control::SetFencing { variable, .. } => {
                        self.refuse(Rejection::mistake(&Mistake::DoesNotDeclare(*variable)))?;
                    }
                    Control::Mistake(mistake) => self.refuse(Rejection::mistake(mistake))?,
                    Control::ShowFencing(_) | Control::ShowAccess(_) => {}
                    control => {
                        if runs_a_name(control) {
                            self.check(&Effects::unknown(None), None)?;
                        }
                        self.refuse(Rejection::changes_by_name())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn check(&mut self, effects: &Effects, why: Option<&dyn fmt::Display>) -> Result<(), Stop> {
        let holding = self.settings.token();
        let basis = self
            .fence
            .check(effects, why, holding, self.path, &mut self.observed)?;
        if basis != Basis::NotRequired {
            self.wrote = Wrote::Yes;
            self.basis = basis;
        }
        Ok(())
    }

    fn check_control(&mut self, control: &Control) -> Result<(), Stop> {
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
                self.check_change(change(self.settings.token(), self.settings.startup_token()))
            }
            _ => Ok(()),
        }
    }

    fn refuse(&mut self, rejection: Rejection) -> Result<(), Stop> {
        Ok(self
            .fence
            .refuse_or_observe(Box::new(rejection), &mut self.observed)?)
    }

    fn check_scope(&mut self, text: &str, lifetime: Lifetime) -> Result<(), Stop> {
        match Scope::from_str(text) {
            Ok(scope) => match self.fence.may_declare(&scope, None, lifetime) {
                Ok(()) => Ok(()),
                Err(rejection) => self.refuse(*rejection),
            },
            Err(error) => self.refuse(Rejection::invalid_value("fencing.scope", text, &error)),
        }
    }

    fn check_token(&mut self, text: &str, lifetime: Lifetime) -> Result<(), Stop> {
        let scope = self.fence.session_scope(&self.settings);
        let value = match TokenValue::parse(text, scope) {
            Ok(Some(value)) => value,
            Ok(None) => return self.check_change(change(self.settings.token(), None)),
            Err(error) => {
                return self.refuse(Rejection::invalid_value("fencing.token", text, &error));
            }
        };
        if let Err(rejection) = self.fence.may_declare_all(&value, lifetime) {
            self.refuse(*rejection)?;
            // It is only observed: the SET passes, and declares nothing.
            return self.check_change(change(self.settings.token(), None));
        }
        for (scope, token) in value.tokens() {
            // Where it is only observed, the declaration says so, once.
            let enforced = self.fence.mode(Some(scope)) == Mode::Enforce;
            if enforced && let Some(mark) = self.fence.fence().mark_above(scope, *token) {
                return self.refuse(Rejection::stale(scope, *token, mark));
            }
        }
        let next = find(self.accepted, self.settings.token(), &value).filter(|next| {
            next.bindings()
                .iter()
                .all(|one| self.fence.is_accepted(one))
        });
        let change = match next {
            Some(_) => change(self.settings.token(), next),
            None => Change::Other,
        };
        let is_accepted = next.is_some();
        self.check_change(change)?;
        match is_accepted {
            true => Ok(()),
            false => Err(Unmet::Declare(value).into()),
        }
    }

    fn check_change(&mut self, change: Change) -> Result<(), Stop> {
        match self.wrote {
            Wrote::Yes if change == Change::Other => {
                self.refuse(Rejection::token_change_after_write())
            }
            _ => Ok(()),
        }
    }
}

pub(super) const fn ends_transaction(control: &Control) -> bool {
    matches!(
        control,
        Control::Commit { .. } | Control::Rollback { .. } | Control::PrepareTransaction
    )
}

/// Whether it runs what a name stands for.
#[must_use]
pub const fn runs_a_name(control: &Control) -> bool {
    matches!(control, Control::Execute { .. } | Control::Fetch { .. })
}

/// Whether it may change the mode of later transactions. A RESET goes back to what the session began with.
pub(super) const fn sets_default_access(control: &Control) -> bool {
    matches!(
        control,
        Control::ResetAll
            | Control::DiscardAll
            | Control::ResetDefaultAccess
            | Control::SetDefaultAccess(_)
    )
}

/// What the server executes in a failed transaction, where all but ROLLBACK TO do a ROLLBACK. With
/// PREPARE TRANSACTION among them: <https://www.postgresql.org/docs/current/sql-prepare-transaction.html>
const fn ends_failure(control: &Control) -> bool {
    ends_transaction(control) || matches!(control, Control::RollbackTo(_))
}

/// Whether a SET or RESET would put another token into force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Same,
    Other,
}

fn change(from: Option<&Arc<Holding>>, to: Option<&Arc<Holding>>) -> Change {
    match (from, to) {
        (None, None) => Change::Same,
        (Some(from), Some(to)) if Arc::ptr_eq(from, to) => Change::Same,
        _ => Change::Other,
    }
}

pub(super) fn find<'a>(
    accepted: &'a [Arc<Holding>],
    in_force: Option<&'a Arc<Holding>>,
    value: &TokenValue,
) -> Option<&'a Arc<Holding>> {
    in_force
        .into_iter()
        .chain(accepted)
        .find(|holding| holding.is_for(value))
}

#[cfg(test)]
mod tests;
