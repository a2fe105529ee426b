//! Token of a session as PostgreSQL would keep it. `fencing.token` and `fencing.scope` behave as custom settings do,
//! through SET, SET LOCAL, RESET, savepoints, errors, COMMIT and ROLLBACK.
//!
//! A statement is applied when the server has confirmed it (CommandComplete), so one that failed changes nothing here
//! either. Source: <https://www.postgresql.org/docs/current/sql-set.html>

use std::str::FromStr;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{Chain, Control, FencingVariable, Lifetime};

use crate::savepoints::{Back, Savepoints};
use crate::wire::backend::TransactionStatus;
use crate::{HeldTokens, SessionFence, TokenValue};

/// One setting: the value of the session and, inside a transaction, a local one that hides it.
#[derive(Debug, Clone)]
struct Variable<T> {
    session: Option<T>,
    local: Option<Option<T>>,
}

impl<T> Variable<T> {
    const fn new(session: Option<T>) -> Self {
        Self {
            session,
            local: None,
        }
    }

    const fn get(&self) -> Option<&T> {
        match &self.local {
            Some(local) => local.as_ref(),
            None => self.session.as_ref(),
        }
    }

    fn for_each(&mut self, mut change: impl FnMut(&mut T)) {
        let local = self.local.iter_mut().flatten();
        self.session.iter_mut().chain(local).for_each(&mut change);
    }

    fn set(&mut self, value: Option<T>, lifetime: Lifetime) {
        match lifetime {
            // A SET also ends an earlier SET LOCAL of the same transaction.
            Lifetime::Session => *self = Self::new(value),
            Lifetime::Local => self.local = Some(value),
        }
    }
}

#[derive(Debug, Clone)]
struct Values<V> {
    token: Variable<V>,
    scope: Variable<Scope>,
}

#[derive(Debug, Clone)]
struct Transaction<V> {
    before: Values<V>,
    savepoints: Savepoints<Values<V>>,
}

/// Result of the request that ReadyForQuery ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    NoError,
    Error,
}

/// The two session variables of the fence. `V` is the form in which a declared token is kept.
#[derive(Debug, Clone)]
pub struct Variables<V> {
    startup_token: Option<V>,
    startup_scope: Option<Scope>,
    values: Values<V>,
    /// Values that a ROLLBACK restores. Created at the first change of a transaction.
    transaction: Option<Transaction<V>>,
    outcome: Outcome,
}

impl<V: Clone> Variables<V> {
    /// Settings of a session that has just started.
    #[must_use]
    pub fn new(token: Option<V>, scope: Option<Scope>) -> Self {
        let values = Values {
            token: Variable::new(token.clone()),
            scope: Variable::new(scope.clone()),
        };
        Self {
            startup_token: token,
            startup_scope: scope,
            values,
            transaction: None,
            outcome: Outcome::NoError,
        }
    }

    /// Sets the accepted token of the startup packet.
    pub fn start_with(&mut self, token: V) {
        *self = Self::new(Some(token), self.startup_scope.clone());
    }

    /// Replaces one form of a token wherever it is kept.
    pub fn replace(&mut self, is_it: impl Fn(&V) -> bool, by: &V) {
        let swap = |held: &mut V| {
            if is_it(held) {
                *held = by.clone();
            }
        };
        self.startup_token.iter_mut().for_each(swap);
        self.values.token.for_each(swap);
        if let Some(transaction) = &mut self.transaction {
            transaction.before.token.for_each(swap);
            transaction
                .savepoints
                .for_each(|values| values.token.for_each(swap));
        }
    }

    /// The token in force.
    #[inline]
    #[must_use]
    pub const fn token(&self) -> Option<&V> {
        self.values.token.get()
    }

    /// Lifetime of the token in force.
    #[must_use]
    pub const fn token_lifetime(&self) -> Lifetime {
        match self.values.token.local {
            Some(_) => Lifetime::Local,
            None => Lifetime::Session,
        }
    }

    /// Scope of a bare number, if the session has set one.
    #[must_use]
    pub const fn scope(&self) -> Option<&Scope> {
        self.values.scope.get()
    }

    /// Token that a RESET returns to.
    #[must_use]
    pub const fn startup_token(&self) -> Option<&V> {
        self.startup_token.as_ref()
    }

    /// Whether the open transaction has changed a setting or set a savepoint, so that its end matters.
    #[inline]
    #[must_use]
    pub const fn is_in_doubt(&self) -> bool {
        self.transaction.is_some()
    }

    /// SET fencing.token.
    pub fn set_token(&mut self, value: Option<V>, lifetime: Lifetime) {
        self.transaction().savepoints.changed();
        self.values.token.set(value, lifetime);
    }

    /// SET fencing.scope.
    pub fn set_scope(&mut self, value: Option<Scope>, lifetime: Lifetime) {
        self.transaction().savepoints.changed();
        self.values.scope.set(value, lifetime);
    }

    /// RESET fencing.token.
    pub fn reset_token(&mut self, lifetime: Lifetime) {
        self.set_token(self.startup_token.clone(), lifetime);
    }

    /// RESET fencing.scope.
    pub fn reset_scope(&mut self, lifetime: Lifetime) {
        self.set_scope(self.startup_scope.clone(), lifetime);
    }

    /// RESET ALL, and DISCARD ALL, which contains it.
    pub fn reset_all(&mut self) {
        self.reset_token(Lifetime::Session);
        self.reset_scope(Lifetime::Session);
    }

    /// SAVEPOINT.
    pub fn savepoint(&mut self, name: &str) {
        let values = self.values.clone();
        self.transaction().savepoints.push(name, values);
    }

    /// RELEASE SAVEPOINT.
    pub fn release(&mut self, name: &str) {
        if let Some(transaction) = &mut self.transaction {
            transaction.savepoints.release(name);
        }
    }

    /// ROLLBACK TO SAVEPOINT. If it is unknown which token that restores, there is none.
    pub fn rollback_to(&mut self, name: &str) {
        let Some(transaction) = &mut self.transaction else {
            return;
        };
        match transaction.savepoints.rollback_to(name) {
            Back::Nothing => {}
            Back::Values(values) => self.values = values,
            Back::Unknown => self.values.token = Variable::new(None),
        }
    }

    /// COMMIT, or PREPARE TRANSACTION, completed.
    pub fn commit(&mut self) {
        self.transaction = None;
        self.values.token.local = None;
        self.values.scope.local = None;
    }

    /// ROLLBACK completed.
    pub fn rollback(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            self.values = transaction.before;
        }
    }

    /// Notes an error of the server.
    pub fn on_error(&mut self) {
        self.outcome = Outcome::Error;
    }

    /// ReadyForQuery. If the session is idle, a transaction that no COMMIT or ROLLBACK has ended was an implicit one,
    /// and has ended now.
    pub fn on_ready(&mut self, status: TransactionStatus) {
        let outcome = std::mem::replace(&mut self.outcome, Outcome::NoError);
        if status == TransactionStatus::Idle && self.transaction.is_some() {
            match outcome {
                Outcome::NoError => self.commit(),
                Outcome::Error => self.rollback(),
            }
        }
    }

    fn transaction(&mut self) -> &mut Transaction<V> {
        let values = &self.values;
        self.transaction.get_or_insert_with(|| Transaction {
            before: values.clone(),
            savepoints: Savepoints::new(),
        })
    }
}

/// Effect of a statement that ends a failed transaction: its COMMIT is a ROLLBACK.
/// <https://www.postgresql.org/docs/current/sql-commit.html>
pub const fn end_of_failed(control: &Control) -> Option<Control> {
    match control {
        Control::Commit { chain } => Some(Control::Rollback { chain: *chain }),
        Control::PrepareTransaction => Some(Control::Rollback { chain: Chain::No }),
        _ => None,
    }
}

/// Applies a statement to the variables of its session, once the server has completed it.
pub fn apply(
    fence: &SessionFence,
    control: &Control,
    accepted: &[Arc<HeldTokens>],
    variables: &mut Variables<Arc<HeldTokens>>,
) {
    match control {
        Control::Commit { .. } | Control::PrepareTransaction => variables.commit(),
        Control::Rollback { .. } => variables.rollback(),
        Control::Savepoint(name) => variables.savepoint(name),
        Control::Release(name) => variables.release(name),
        Control::RollbackTo(name) => variables.rollback_to(name),
        Control::SetFencing {
            variable: FencingVariable::Token,
            value,
            lifetime,
        } => {
            let value = TokenValue::parse(value, scope(fence, variables))
                .ok()
                .flatten();
            let held = value.and_then(|value| find(accepted, variables.token(), &value).cloned());
            variables.set_token(held, *lifetime);
        }
        Control::SetFencing {
            variable: FencingVariable::Scope,
            value,
            lifetime,
        } => {
            variables.set_scope(Scope::from_str(value).ok(), *lifetime);
        }
        Control::ResetFencing {
            variable: FencingVariable::Token,
            lifetime,
        } => {
            variables.reset_token(*lifetime);
        }
        Control::ResetFencing {
            variable: FencingVariable::Scope,
            lifetime,
        } => {
            variables.reset_scope(*lifetime);
        }
        Control::ResetAll => variables.reset_all(),
        Control::DiscardAll => {
            variables.reset_all();
            // DISCARD ALL cannot run inside a transaction, and commits at once even in a pipeline.
            variables.commit();
        }
        Control::Begin { .. }
        | Control::SetTransactionAccess(_)
        | Control::SetDefaultAccess(_)
        | Control::ResetDefaultAccess
        | Control::Mistake(_)
        | Control::ShowFencing(_)
        | Control::ShowAccess(_)
        | Control::Prepare { .. }
        | Control::Execute { .. }
        | Control::Fetch { .. }
        | Control::Deallocate { .. }
        | Control::DeallocateAll
        | Control::MayChangeNames => {}
    }
}

/// Scope of a bare number.
pub fn scope<'a>(fence: &'a SessionFence, variables: &'a Variables<Arc<HeldTokens>>) -> &'a Scope {
    variables.scope().unwrap_or_else(|| fence.default_scope())
}

/// Accepted tokens that a value stands for.
pub fn find<'a>(
    accepted: &'a [Arc<HeldTokens>],
    in_force: Option<&'a Arc<HeldTokens>>,
    value: &TokenValue,
) -> Option<&'a Arc<HeldTokens>> {
    in_force
        .into_iter()
        .chain(accepted)
        .find(|held| held.is_for(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Lifetime::{Local, Session};

    type Step = fn(&mut Variables<u64>);

    /// Runs the steps on a session that began with token 1 and checks the token in force.
    #[track_caller]
    fn check(steps: &[Step], expect: Option<u64>) {
        let mut settings = Variables::new(Some(1), None);
        for step in steps {
            step(&mut settings);
        }
        assert_eq!(settings.token().copied(), expect);
    }

    const IDLE: Step = |s| s.on_ready(TransactionStatus::Idle);
    const OPEN: Step = |s| s.on_ready(TransactionStatus::InTransaction);
    const FAIL: Step = |s| {
        s.on_error();
        s.on_ready(TransactionStatus::Failed);
    };
    const SET_5: Step = |s| s.set_token(Some(5), Session);
    const SET_6: Step = |s| s.set_token(Some(6), Session);
    const LOCAL_7: Step = |s| s.set_token(Some(7), Local);
    const RESET: Step = |s| s.reset_token(Session);
    const COMMIT: Step = |s| s.commit();
    const ROLLBACK: Step = |s| s.rollback();
    const SAVE: Step = |s| s.savepoint("a");
    const BACK: Step = |s| s.rollback_to("a");
    const RELEASE: Step = |s| s.release("a");

    #[test]
    fn outside_of_a_block() {
        check(&[SET_5, IDLE], Some(5));
        check(&[LOCAL_7, IDLE], Some(1));
        check(&[SET_5, IDLE, RESET, IDLE], Some(1));
        check(&[|s| s.set_token(None, Session), IDLE], None);
        // SET x; SELECT 1/0 in one string.
        check(&[SET_5, |s| s.on_error(), IDLE], Some(1));
        check(&[|s| s.on_error(), IDLE, SET_5, IDLE], Some(5));
    }

    #[test]
    fn inside_a_block() {
        check(&[SET_5, OPEN, COMMIT, IDLE], Some(5));
        check(&[SET_5, OPEN, ROLLBACK, IDLE], Some(1));
        check(&[SET_5, FAIL, ROLLBACK, IDLE], Some(1));
        check(&[LOCAL_7, OPEN], Some(7));
        check(&[LOCAL_7, OPEN, COMMIT, IDLE], Some(1));
        check(&[LOCAL_7, SET_5, OPEN], Some(5));
        check(&[SET_5, LOCAL_7, OPEN, COMMIT, IDLE], Some(5));
        check(&[SET_5, LOCAL_7, RESET, OPEN], Some(1));
        // BEGIN; SET; COMMIT; SELECT 1/0 in one string: the commit stands.
        check(&[SET_5, COMMIT, |s| s.on_error(), IDLE], Some(5));
        // COMMIT AND CHAIN; SET; ROLLBACK.
        check(
            &[SET_5, |s| s.commit(), OPEN, SET_6, OPEN, ROLLBACK, IDLE],
            Some(5),
        );
    }

    #[test]
    fn savepoints() {
        check(&[SAVE, SET_5, OPEN, BACK, OPEN], Some(1));
        check(&[SET_5, SAVE, SET_6, BACK, OPEN, COMMIT, IDLE], Some(5));
        check(&[SAVE, SET_5, RELEASE, OPEN, COMMIT, IDLE], Some(5));
        check(&[SAVE, LOCAL_7, RELEASE, OPEN], Some(7));
        check(&[SAVE, LOCAL_7, RELEASE, OPEN, COMMIT, IDLE], Some(1));
        check(&[SAVE, SET_5, SAVE, SET_6, BACK, OPEN], Some(5));
        // Of two savepoints of one name, the inner one goes first.
        check(&[SAVE, SET_5, SAVE, SET_6, RELEASE, BACK, OPEN], Some(1));
        // A savepoint survives a ROLLBACK TO it.
        check(&[SAVE, SET_5, BACK, SET_6, BACK, OPEN], Some(1));
        check(&[SET_5, |s| s.rollback_to("unknown"), OPEN], Some(5));
    }

    /// Even one that is restored later.
    #[test]
    fn another_form_of_a_token_takes_its_place_everywhere() {
        // So many savepoints that the first is not kept.
        const MANY: Step = |s| (0..100).for_each(|_| s.savepoint("b"));
        for (between, back) in [(SAVE, BACK), (SAVE, ROLLBACK), (SAVE, RESET), (MANY, BACK)] {
            let mut settings = Variables::new(Some(1), None);
            for step in [SAVE, between, SET_5] {
                step(&mut settings);
            }
            settings.replace(|token| *token == 1, &10);
            back(&mut settings);
            assert_eq!(settings.token(), Some(&10));
        }
    }

    #[test]
    fn only_a_change_leaves_doubt() {
        let mut settings = Variables::new(Some(1), None);
        assert!(!settings.is_in_doubt());
        SET_5(&mut settings);
        assert!(settings.is_in_doubt());
        IDLE(&mut settings);
        assert!(!settings.is_in_doubt());
    }
}
