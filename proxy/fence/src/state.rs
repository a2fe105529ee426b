//! What a rollback undoes in a session. `fencing.token` and `fencing.scope` behave as custom settings do, through SET,
//! SET LOCAL, RESET, savepoints, errors, COMMIT and ROLLBACK.
//!
//! A statement is applied when the server has confirmed it (CommandComplete), so one that failed changes nothing here
//! either. Source: <https://www.postgresql.org/docs/current/sql-set.html>

mod snapshots;

use std::iter::once;
use std::str::FromStr;
use std::sync::Arc;

use pgpalisade_authority::{Mark, Scope};
use pgpalisade_policies::{Chain, Control, FencingVariable, Lifetime};

pub use snapshots::ServerText;
use snapshots::{Declared, Scoped, Setting, Tokens, Transaction};

use crate::wire::backend::TransactionStatus;
use crate::{HeldToken, HeldTokens, SessionFence, TokenValue, TokenValueError};

/// Tokens that a take has obtained, if any.
pub type Taken = Option<Arc<HeldTokens>>;

/// State of a session that statements change and rollbacks restore.
#[derive(Debug, Clone)]
pub struct SessionState {
    startup: Scoped,
    now: Scoped,
    /// Created at the first change or savepoint of a transaction.
    transaction: Option<Transaction>,
    status: TransactionStatus,
    /// Whether an error has come since the last ReadyForQuery.
    has_error: bool,
    /// Tokens that the take of the current message has obtained. A refusal that is only observed leaves none.
    taken: Option<Taken>,
}

impl SessionState {
    /// State of a session that has just started.
    #[must_use]
    pub fn new(scope: Option<Scope>) -> Self {
        let startup = Scoped {
            token: Setting::default(),
            scope: Setting::new(scope),
        };
        Self {
            now: startup.clone(),
            startup,
            transaction: None,
            status: TransactionStatus::Idle,
            has_error: false,
            taken: None,
        }
    }

    /// Sets the accepted token of the startup packet, to which RESET returns.
    pub fn start_with(&mut self, held: Option<Arc<HeldTokens>>, text: ServerText) {
        let tokens = held.into();
        self.startup.token = Setting::new(Declared { tokens, text });
        self.now = self.startup.clone();
    }

    /// Puts the newest acceptance of a value in place of earlier ones, wherever they are kept.
    pub fn replace(&mut self, value: &TokenValue, by: &Arc<HeldTokens>) {
        let transaction = self.transaction.iter_mut();
        let all = [&mut self.startup, &mut self.now].into_iter();
        for scoped in all.chain(transaction.flat_map(Transaction::snapshots)) {
            let Setting { session, local } = &mut scoped.token;
            let tokens = once(session).chain(local).map(|one| &mut one.tokens);
            tokens
                .filter(|tokens| tokens.gives_way_to(value))
                .for_each(|tokens| *tokens = Tokens::Here(Arc::clone(by)));
        }
    }

    /// Leaves the server connection, with no transaction open: its tokens must be declared for the next one.
    pub fn leave_server(&mut self) {
        debug_assert!(self.transaction.is_none());
        for scoped in [&mut self.startup, &mut self.now] {
            scoped.token.session.tokens.leave();
        }
    }

    /// Loses the server connection, and with it the open transaction.
    pub fn lose_server(&mut self) {
        self.rollback(Chain::No);
        self.has_error = false;
        self.taken = None;
        self.leave_server();
    }

    /// Takes up a server connection for which these tokens were accepted, and which has this text of them.
    pub fn enter_server(&mut self, accepted: &[Arc<HeldTokens>], text: ServerText) {
        for scoped in [&mut self.startup, &mut self.now] {
            let token = &mut scoped.token.session;
            for held in accepted.iter().filter(|held| held.stale().is_none()) {
                // A stale one is from before a repair, even if its number is the same.
                let same = |other: &&Arc<HeldTokens>| {
                    other.stale().is_none() && other.value() == held.value()
                };
                if token.tokens.elsewhere().filter(same).is_some() {
                    token.tokens = Tokens::Here(Arc::clone(held));
                }
            }
            if !matches!(token.tokens, Tokens::None) {
                token.text = token.text.max(text);
            }
        }
    }

    /// Tokens in force that must be declared for the server connection in use before they count.
    #[inline]
    #[must_use]
    pub const fn undeclared(&self) -> Option<&Arc<HeldTokens>> {
        self.now.token.get().tokens.elsewhere()
    }

    /// The startup packet's tokens, if they must be declared for the server connection in use. Stale ones are declared
    /// nowhere else.
    #[must_use]
    pub fn undeclared_startup(&self) -> Option<&Arc<HeldTokens>> {
        let startup = self.startup.token.session.tokens.elsewhere();
        startup.filter(|held| held.stale().is_none())
    }

    /// Keeps tokens that a takeover has made stale meanwhile: they are declared nowhere else, and refuse writes.
    /// Returns the first of those in force, with the mark above it.
    pub fn keep_stale(&mut self) -> Option<(HeldToken, Mark)> {
        let in_force = self.undeclared().and_then(|held| held.stale());
        let in_force = in_force.map(|(held, mark)| (held.clone(), mark));
        for scoped in [&mut self.startup, &mut self.now] {
            let tokens = &mut scoped.token.session.tokens;
            if let Tokens::Elsewhere(held) = tokens
                && held.stale().is_some()
            {
                *tokens = Tokens::Here(Arc::clone(held));
            }
        }
        in_force
    }

    /// The tokens in force.
    #[inline]
    #[must_use]
    pub const fn token(&self) -> Option<&Arc<HeldTokens>> {
        self.now.token.get().tokens.here()
    }

    /// The tokens in force, whether they were accepted for the server connection in use or for an earlier one.
    #[inline]
    #[must_use]
    pub fn held(&self) -> Option<&Arc<HeldTokens>> {
        self.token().or_else(|| self.undeclared())
    }

    /// The server's text of the token in force.
    #[inline]
    #[must_use]
    pub const fn server_text(&self) -> ServerText {
        self.now.token.get().text
    }

    /// Lifetime of the token in force.
    #[must_use]
    pub const fn token_lifetime(&self) -> Lifetime {
        match self.now.token.local {
            Some(_) => Lifetime::Local,
            None => Lifetime::Session,
        }
    }

    /// Token that a RESET returns to.
    #[must_use]
    pub const fn startup_token(&self) -> Option<&Arc<HeldTokens>> {
        self.startup.token.session.tokens.here()
    }

    /// Scope of a bare number.
    #[must_use]
    pub fn scope<'a>(&'a self, fence: &'a SessionFence) -> &'a Scope {
        let scope = self.now.scope.get().as_ref();
        scope.unwrap_or_else(|| fence.default_scope())
    }

    /// Whether the session has set a scope.
    #[must_use]
    pub const fn has_scope(&self) -> bool {
        self.now.scope.get().is_some()
    }

    /// Transaction status after the last reply.
    #[inline]
    #[must_use]
    pub const fn status(&self) -> TransactionStatus {
        self.status
    }

    /// Whether the open transaction has failed.
    #[inline]
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.status == TransactionStatus::Failed
    }

    /// Whether the open transaction has changed a setting or set a savepoint, so that its end matters.
    #[inline]
    #[must_use]
    pub const fn is_in_doubt(&self) -> bool {
        self.transaction.is_some()
    }

    /// Applies a statement that the server has completed.
    pub fn apply(&mut self, fence: &SessionFence, accepted: &[Arc<HeldTokens>], control: &Control) {
        match control {
            Control::Begin { .. } => self.status = TransactionStatus::InTransaction,
            Control::Savepoint(name) => {
                let now = self.now.clone();
                self.transaction().push(name, now);
            }
            Control::Release(name) => self.release(name),
            Control::RollbackTo(name) => self.rollback_to(name),
            Control::Commit { chain } => self.commit(*chain),
            Control::PrepareTransaction => self.commit(Chain::No),
            Control::Rollback { chain } => self.rollback(*chain),
            Control::SetFencing {
                variable,
                value,
                lifetime,
            } => match variable {
                FencingVariable::Token => self.set_token(fence, accepted, value, *lifetime),
                FencingVariable::Scope => {
                    let scope = Scope::from_str(value).ok();
                    self.change().scope.set(scope, *lifetime);
                }
            },
            Control::ResetFencing { variable, lifetime } => self.reset(*variable, *lifetime),
            Control::ResetAll => self.reset_all(),
            Control::DiscardAll => {
                self.reset_all();
                // DISCARD ALL cannot run inside a transaction, and commits at once even in a pipeline.
                self.commit(Chain::No);
            }
            _ => {}
        }
    }

    /// Notes what the take of the current message has obtained. No other take follows before its reply.
    pub fn on_taken(&mut self, taken: Option<Taken>) {
        self.taken = taken;
    }

    /// Value of `fencing.token`, as written.
    pub(crate) fn declared(
        &self,
        fence: &SessionFence,
        text: &str,
    ) -> Result<Option<TokenValue>, TokenValueError> {
        TokenValue::parse(text, self.scope(fence))
    }

    /// Value that a SET puts in force: for a take, that of the tokens that it has obtained.
    pub(crate) fn resolve(&self, value: TokenValue) -> Option<TokenValue> {
        match &self.taken {
            Some(taken) if value.takes() => taken.as_ref().map(|held| held.value()),
            _ => Some(value),
        }
    }

    /// Notes that the proxy sets the tokens in force in the server.
    pub fn on_tokens_sent(&mut self) {
        let declared = Declared {
            tokens: self.token().cloned().into(),
            text: ServerText::Tokens,
        };
        let lifetime = self.token_lifetime();
        self.change().token.set(declared, lifetime);
    }

    /// Applies an error of the server.
    pub fn on_error(&mut self) {
        self.has_error = true;
        if let Some(transaction) = &self.transaction {
            self.now = transaction.top().clone();
        }
    }

    /// Applies ReadyForQuery. If the session is idle, a transaction that no COMMIT or ROLLBACK has ended was an
    /// implicit one, and has ended now.
    pub fn on_ready(&mut self, status: TransactionStatus) {
        let has_error = std::mem::take(&mut self.has_error);
        self.status = status;
        if status == TransactionStatus::Idle && self.transaction.is_some() {
            if has_error {
                self.rollback(Chain::No);
            } else {
                self.commit(Chain::No);
            }
        }
    }

    /// Accepted tokens that a value stands for.
    pub(crate) fn find<'a>(
        &'a self,
        accepted: &'a [Arc<HeldTokens>],
        value: &TokenValue,
    ) -> Option<&'a Arc<HeldTokens>> {
        let mut known = self.token().into_iter().chain(accepted);
        known.find(|held| held.is_for(value))
    }

    fn set_token(
        &mut self,
        fence: &SessionFence,
        accepted: &[Arc<HeldTokens>],
        text: &str,
        lifetime: Lifetime,
    ) {
        let mut declared = Declared::default();
        if let Ok(Some(value)) = self.declared(fence, text) {
            declared.text = ServerText::of(&value);
            let value = self.resolve(value);
            let held = value.and_then(|value| self.find(accepted, &value).cloned());
            declared.tokens = held.into();
        }
        self.change().token.set(declared, lifetime);
    }

    fn reset(&mut self, variable: FencingVariable, lifetime: Lifetime) {
        match variable {
            FencingVariable::Token => {
                let token = self.startup.token.session.clone();
                self.change().token.set(token, lifetime);
            }
            FencingVariable::Scope => {
                let scope = self.startup.scope.session.clone();
                self.change().scope.set(scope, lifetime);
            }
        }
    }

    fn reset_all(&mut self) {
        self.reset(FencingVariable::Token, Lifetime::Session);
        self.reset(FencingVariable::Scope, Lifetime::Session);
    }

    /// What happened since the savepoint belongs to the outer level.
    fn release(&mut self, name: &str) {
        if let Some(transaction) = &mut self.transaction
            && let Some(count) = transaction.find(name)
        {
            transaction.savepoints.truncate(count.saturating_sub(1));
        }
    }

    /// The savepoint itself stays.
    fn rollback_to(&mut self, name: &str) {
        self.status = TransactionStatus::InTransaction;
        if let Some(transaction) = &mut self.transaction
            && let Some(count) = transaction.find(name)
        {
            transaction.savepoints.truncate(count);
            self.now = transaction.top().clone();
        }
    }

    fn commit(&mut self, chain: Chain) {
        self.transaction = None;
        self.now.token.local = None;
        self.now.scope.local = None;
        self.status = status_after(chain);
    }

    fn rollback(&mut self, chain: Chain) {
        if let Some(transaction) = self.transaction.take() {
            self.now = transaction.start;
        }
        self.status = status_after(chain);
    }

    fn transaction(&mut self) -> &mut Transaction {
        let now = &self.now;
        self.transaction
            .get_or_insert_with(|| Transaction::begun(now.clone()))
    }

    /// Values that a statement of the open transaction changes.
    fn change(&mut self) -> &mut Scoped {
        self.transaction();
        &mut self.now
    }
}

const fn status_after(chain: Chain) -> TransactionStatus {
    match chain {
        Chain::Yes => TransactionStatus::InTransaction,
        Chain::No => TransactionStatus::Idle,
    }
}

#[cfg(test)]
mod tests;
