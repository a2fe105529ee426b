//! What to do with a whole text: admit it, refuse it, or declare a token first.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{
    Chain, Class, Control, Effects, FencingVariable, Lifetime, Requirement, SearchPath, Statement,
    Verdict,
};

use super::{Basis, Fence, Holding, Permit, TokenValue};
use crate::rejection::Rejection;
use crate::session::Pipeline;
use crate::session::names::{Meaning, Names};
use crate::session::settings::Settings;
use crate::wire::backend::TransactionStatus;

/// Whether the open transaction has been let write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wrote {
    /// Nothing yet.
    #[default]
    No,
    /// It may have.
    Yes,
}

/// What is known of a session where a text arrives: everything before it has been answered, or does
/// not matter to it.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// Its token as PostgreSQL keeps it.
    pub settings: &'a Settings<Arc<Holding>>,
    /// Tokens that were accepted for it, whether in force or not.
    pub accepted: &'a [Arc<Holding>],
    /// What names stand for.
    pub names: &'a Names,
    /// The server's last word.
    pub status: TransactionStatus,
    /// Whether the open transaction has been let write.
    pub wrote: Wrote,
    /// Whether the text is part of a pipeline.
    pub pipeline: Pipeline,
}

/// What is to be done with a text.
#[derive(Debug)]
pub enum Plan {
    /// Send it.
    Admit(Permit),
    /// Have these tokens accepted for the session, then ask again.
    Declare(TokenValue),
    /// Refuse it as a whole.
    Refuse(Box<Rejection>),
}

/// Why a walk over the statements ended before the last one.
enum Stop {
    Declare(TokenValue),
    Refuse(Box<Rejection>),
    /// The transaction has failed: the server executes nothing from here on.
    NothingRuns,
}

impl From<Rejection> for Stop {
    fn from(rejection: Rejection) -> Self {
        Self::Refuse(Box::new(rejection))
    }
}

impl Fence {
    /// Decides a text as a whole: one refused statement refuses all of it.
    #[must_use]
    pub fn plan(&self, verdict: &Verdict, situation: &Situation<'_>) -> Plan {
        let mut walk = Walk {
            fence: self,
            names: situation.names,
            accepted: situation.accepted,
            settings: Cow::Borrowed(situation.settings),
            failed: situation.status == TransactionStatus::Failed,
            wrote: situation.wrote,
            basis: Basis::NotRequired,
            alone: verdict.statements.len() == 1,
            local_is_lost: verdict.statements.len() == 1
                && situation.status == TransactionStatus::Idle
                && situation.pipeline == Pipeline::Closed,
        };
        for statement in &verdict.statements {
            match walk.step(statement) {
                Ok(()) => {}
                Err(Stop::Declare(value)) => return Plan::Declare(value),
                Err(Stop::Refuse(rejection)) => return Plan::Refuse(rejection),
                Err(Stop::NothingRuns) => {
                    walk.basis = Basis::FailedTransaction;
                    break;
                }
            }
        }
        Plan::Admit(Permit::new(walk.basis))
    }

    /// Decides a request of which nothing is known but its effects.
    ///
    /// # Errors
    ///
    /// The rejection.
    pub fn admit_effects(
        &self,
        effects: &Effects,
        holding: Option<&Arc<Holding>>,
    ) -> Result<Permit, Box<Rejection>> {
        match self.policy.requirement(effects, SearchPath::Unknown) {
            Requirement::Free => Ok(Permit::new(Basis::NotRequired)),
            Requirement::Refuse(reason) => Err(Box::new(Rejection::policy(&reason))),
            Requirement::Current(_) | Requirement::NeedsSearchPath(_) => self
                .check_write(holding, None)
                .map(|()| Permit::new(Basis::Token)),
        }
    }

    /// Whether a session with these tokens may write.
    pub(super) fn check_write(
        &self,
        holding: Option<&Arc<Holding>>,
        why_write: Option<&dyn fmt::Display>,
    ) -> Result<(), Box<Rejection>> {
        let missing = || Box::new(Rejection::no_token(&self.default_scope, why_write));
        let holding = holding.ok_or_else(missing)?;
        if let Some((binding, mark)) = holding.stale() {
            return Err(Box::new(Rejection::stale(
                binding.cell.scope(),
                binding.token,
                mark,
            )));
        }
        if let Some(binding) = holding.deposed() {
            let scope = binding.cell.scope();
            return Err(Box::new(Rejection::deposed_primary(scope, binding.token)));
        }
        holding
            .binding(self.default_cell.newest())
            .map(|_| ())
            .ok_or_else(missing)
    }

    /// Applies what a statement has done to the session's settings, once the server has completed it.
    pub fn apply(
        &self,
        control: &Control,
        accepted: &[Arc<Holding>],
        settings: &mut Settings<Arc<Holding>>,
    ) {
        match control {
            Control::Commit { chain } => settings.commit(*chain),
            Control::PrepareTransaction => settings.commit(Chain::No),
            Control::Rollback { chain } => settings.rollback(*chain),
            Control::Savepoint(name) => settings.savepoint(name),
            Control::Release(name) => settings.release(name),
            Control::RollbackTo(name) => settings.rollback_to(name),
            Control::SetFencing {
                variable: FencingVariable::Token,
                value,
                lifetime,
            } => {
                let value = TokenValue::parse(value, self.session_scope(settings))
                    .ok()
                    .flatten();
                let holding =
                    value.and_then(|value| find(accepted, settings.token(), &value).cloned());
                settings.set_token(holding, *lifetime);
            }
            Control::SetFencing {
                variable: FencingVariable::Scope,
                value,
                lifetime,
            } => {
                settings.set_scope(Scope::from_str(value).ok(), *lifetime);
            }
            Control::ResetFencing {
                variable: FencingVariable::Token,
                lifetime,
            } => {
                settings.reset_token(*lifetime);
            }
            Control::ResetFencing {
                variable: FencingVariable::Scope,
                lifetime,
            } => {
                settings.reset_scope(*lifetime);
            }
            Control::ResetAll => settings.reset_all(),
            Control::DiscardAll => {
                settings.reset_all();
                // It cannot run inside a transaction, and commits at once even in a pipeline.
                settings.commit(Chain::No);
            }
            Control::Begin { .. }
            | Control::SetTransactionAccess(_)
            | Control::SetDefaultAccess(_)
            | Control::ResetDefaultAccess
            | Control::ShowFencing(_)
            | Control::Prepare { .. }
            | Control::Execute { .. }
            | Control::Deallocate { .. }
            | Control::DeallocateAll => {}
        }
    }

    /// The scope that a bare number is for.
    #[must_use]
    pub fn session_scope<'a>(&'a self, settings: &'a Settings<Arc<Holding>>) -> &'a Scope {
        settings.scope().unwrap_or(&self.default_scope)
    }
}

/// One walk over the statements of a text, with the settings as they will be at each of them.
struct Walk<'a> {
    fence: &'a Fence,
    names: &'a Names,
    accepted: &'a [Arc<Holding>],
    settings: Cow<'a, Settings<Arc<Holding>>>,
    failed: bool,
    wrote: Wrote,
    basis: Basis,
    /// The text has no other statement.
    alone: bool,
    /// It is a transaction of its own, in which a SET LOCAL does nothing but warn.
    local_is_lost: bool,
}

impl Walk<'_> {
    fn step(&mut self, statement: &Statement) -> Result<(), Stop> {
        if self.failed {
            if !statement.controls.iter().any(ends_failure) {
                return Err(Stop::NothingRuns);
            }
            self.failed = false;
        }
        self.check_requirement(statement)?;
        for control in &statement.controls {
            self.check_control(control)?;
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

    fn check_requirement(&mut self, statement: &Statement) -> Result<(), Stop> {
        let class = self.class(statement);
        let effects = Effects {
            class,
            ..statement.effects.clone()
        };
        match self.fence.policy.requirement(&effects, SearchPath::Unknown) {
            Requirement::Free => return Ok(()),
            Requirement::Refuse(reason) => return Err(Rejection::policy(&reason).into()),
            Requirement::Current(_) | Requirement::NeedsSearchPath(_) => {}
        }
        let why = statement.why.as_ref().map(|why| why as &dyn fmt::Display);
        self.fence
            .check_write(self.settings.token(), why)
            .map_err(Stop::Refuse)?;
        self.basis = Basis::Token;
        self.wrote = Wrote::Yes;
        Ok(())
    }

    /// The class of a statement where the session stands: an EXECUTE is what its name stands for, and
    /// a COMMIT is a write where there is something to commit.
    fn class(&self, statement: &Statement) -> Class {
        let of_controls = statement.controls.iter().map(|control| match control {
            Control::Execute { name } => self
                .names
                .statement(name.as_bytes())
                .map_or(Class::Write, Meaning::class),
            Control::Commit { .. } | Control::PrepareTransaction if self.wrote == Wrote::Yes => {
                Class::Write
            }
            _ => Class::Read,
        });
        of_controls.fold(statement.effects.class, Ord::max)
    }

    fn check_control(&self, control: &Control) -> Result<(), Stop> {
        match control {
            Control::SetFencing {
                variable: FencingVariable::Scope,
                value,
                ..
            } => match value.is_empty() {
                true => Ok(()),
                false => Scope::from_str(value).map(|_| ()).map_err(|error| {
                    Rejection::invalid_value("fencing.scope", value, &error).into()
                }),
            },
            Control::SetFencing {
                lifetime: Lifetime::Local,
                ..
            } if self.local_is_lost => Ok(()),
            Control::SetFencing { value, .. } => self.check_token(value),
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

    fn check_token(&self, text: &str) -> Result<(), Stop> {
        let scope = self.fence.session_scope(&self.settings);
        let value = TokenValue::parse(text, scope)
            .map_err(|error| Rejection::invalid_value("fencing.token", text, &error))?;
        let Some(value) = value else {
            return self.check_change(change(self.settings.token(), None));
        };
        for (scope, token) in value.tokens() {
            let cell = self.fence.cell(scope);
            if let Some(mark) = cell.mark_above(*token) {
                return Err(Rejection::stale(scope, *token, mark).into());
            }
        }
        let next = find(self.accepted, self.settings.token(), &value);
        self.check_change(match next {
            Some(_) => change(self.settings.token(), next),
            None => Change::Other,
        })?;
        next.map(|_| ()).ok_or(Stop::Declare(value))
    }

    fn check_change(&self, change: Change) -> Result<(), Stop> {
        match self.wrote {
            Wrote::Yes if change == Change::Other => {
                Err(Rejection::token_change_after_write().into())
            }
            _ => Ok(()),
        }
    }
}

const fn ends_transaction(control: &Control) -> bool {
    matches!(
        control,
        Control::Commit { .. } | Control::Rollback { .. } | Control::PrepareTransaction
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

fn find<'a>(
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
