//! What to do with a whole text: admit it, refuse it, or declare a token first.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{
    Control, Effects, FencingVariable, Lifetime, Mode, ObjectName, SearchPath, Statement, Verdict,
};

use super::requirement::Unmet;
use super::{Basis, Holding, Permit, SessionFence, TokenValue};
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
    /// Where names without a schema are looked up.
    pub path: SearchPath<'a>,
    /// Whether read-only mode holds for it, where it may not write.
    pub guard: Guard,
}

/// How sure it is that read-only mode holds for a session that may not write.
///
/// A function of the database may set `default_transaction_read_only`. That changes nothing for the transaction that it
/// runs in, but for the next, and the server tells only with ReadyForQuery.
/// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-ASYNC>
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Guard {
    /// The server has told, and nothing has run since.
    #[default]
    Sure,
    /// Something has run that may have switched it off for the next transaction.
    Ran,
    /// And the next one has begun.
    InDoubt,
}

impl Guard {
    /// How it is behind a statement.
    #[must_use]
    pub fn after(self, statement: &Statement) -> Self {
        let mut controls = statement.controls.iter();
        let ends = controls.clone().any(ends_transaction);
        let switches = statement.may_hide_a_write() || controls.any(sets_default_access);
        match self {
            Self::Sure if switches => Self::Ran,
            Self::Ran if ends => Self::InDoubt,
            guard => guard,
        }
    }
}

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
            names: situation.names,
            accepted: situation.accepted,
            path: situation.path,
            guard: situation.guard,
            settings: Cow::Borrowed(situation.settings),
            failed: situation.status == TransactionStatus::Failed,
            wrote: situation.wrote,
            basis: Basis::NotRequired,
            observed: None,
            alone: verdict.statements.len() == 1,
            local_is_lost: verdict.statements.len() == 1
                && situation.status == TransactionStatus::Idle
                && situation.pipeline == Pipeline::Closed,
        };
        for statement in &verdict.statements {
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

/// One walk over the statements of a text, with the settings as they will be at each of them.
struct Walk<'a> {
    fence: &'a SessionFence,
    names: &'a Names,
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
            // A COMMIT of it is a ROLLBACK.
            if statement.controls.iter().any(ends_transaction) {
                self.wrote = Wrote::No;
            }
        }
        self.check_requirement(statement)?;
        self.check_backstop(statement)?;
        self.guard = self.guard.after(statement);
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

    /// Read-only mode guards a session that may not write, as long as it is sure to be on.
    fn check_backstop(&mut self, statement: &Statement) -> Result<(), Stop> {
        let holding = self.settings.token();
        if self.guard == Guard::InDoubt
            && statement.may_hide_a_write()
            && let Some(rejection) = self.fence.unguarded(holding)
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
                Control::Execute { name } => match self.names.statement(name.as_bytes()) {
                    Some(meaning) => self.check_meaning(meaning)?,
                    None => self.check(&Effects::unknown(None), None)?,
                },
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

    fn check_meaning(&mut self, meaning: &Meaning) -> Result<(), Stop> {
        match meaning.verdict() {
            Some(verdict) => {
                for statement in &verdict.statements {
                    self.check(&statement.effects, None)?;
                }
                Ok(())
            }
            None => self.check(&meaning.effects(), None),
        }
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
                ..
            } if !value.is_empty() => match Scope::from_str(value) {
                Ok(_) => Ok(()),
                Err(error) => self.refuse(Rejection::invalid_value("fencing.scope", value, &error)),
            },
            Control::SetFencing {
                variable: FencingVariable::Scope,
                ..
            } => Ok(()),
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

    fn refuse(&mut self, rejection: Rejection) -> Result<(), Stop> {
        Ok(self
            .fence
            .refuse_or_observe(Box::new(rejection), &mut self.observed)?)
    }

    fn check_token(&mut self, text: &str) -> Result<(), Stop> {
        let scope = self.fence.session_scope(&self.settings);
        let value = match TokenValue::parse(text, scope) {
            Ok(Some(value)) => value,
            Ok(None) => return self.check_change(change(self.settings.token(), None)),
            Err(error) => {
                return self.refuse(Rejection::invalid_value("fencing.token", text, &error));
            }
        };
        for (scope, token) in value.tokens() {
            // Where it is only observed, the declaration says so, once.
            let enforced = self.fence.mode(Some(scope)) == Mode::Enforce;
            if enforced && let Some(mark) = self.fence.fence().cell(scope).mark_above(*token) {
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

const fn ends_transaction(control: &Control) -> bool {
    matches!(
        control,
        Control::Commit { .. } | Control::Rollback { .. } | Control::PrepareTransaction
    )
}

/// Whether it may change the mode of later transactions. A RESET goes back to what the session began with.
const fn sets_default_access(control: &Control) -> bool {
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
