//! The policy in force with the marks of its scopes, and its rules for one session.

use std::str::FromStr;
use std::sync::Arc;

use pgpalisade_authority::{Mark, Scope, ScopeError, Token};
use pgpalisade_policies::{DEFAULT_SCOPE, Lifetime, Mode, Policy, ScopeId, SessionPolicy, Who};

use super::mark_cache::{CachedMark, MarkCache};
use super::{GrantMode, HeldToken, HeldTokens, TokenValue};
use crate::rejection::Rejection;

/// Everything that a decision rests on besides the session. Immutable: a reload makes another one.
#[derive(Debug)]
pub struct Fence {
    policy: Arc<Policy>,
    marks: Arc<MarkCache>,
    /// Marks of the scopes that the policy names, in its order.
    named: Box<[Arc<CachedMark>]>,
    /// Index in `named` of each cached mark, by its number.
    places: Box<[Option<ScopeId>]>,
    /// Mark of [`DEFAULT_SCOPE`].
    default: Arc<CachedMark>,
    overall: Mode,
}

impl Fence {
    /// Makes a fence for one policy, with the marks that this proxy knows. If `overall` is to observe, nothing is
    /// refused, whatever the policy says.
    ///
    /// # Errors
    ///
    /// The policy names a scope by an invalid name.
    pub fn new(policy: Policy, marks: Arc<MarkCache>, overall: Mode) -> Result<Self, ScopeError> {
        let mark = |name: &str| Scope::from_str(name).map(|scope| marks.mark(&scope));
        let named = policy.scopes().iter().map(|name| mark(name));
        let named: Box<[_]> = named.collect::<Result<_, _>>()?;
        Ok(Self {
            places: places(&policy, &named),
            named,
            default: mark(DEFAULT_SCOPE)?,
            policy: Arc::new(policy),
            marks,
            overall,
        })
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Mode of a scope, unless a rule for sessions sets another.
    #[must_use]
    pub fn mode_of_scope(&self, scope: &str) -> Mode {
        match self.overall {
            Mode::Observe => Mode::Observe,
            Mode::Enforce => self.policy.mode_of(scope),
        }
    }

    /// Rules for one session.
    #[must_use]
    pub fn for_session(self: &Arc<Self>, who: &Who<'_>) -> SessionFence {
        SessionFence {
            rules: self.policy.for_session(who),
            fence: Arc::clone(self),
            is_given_tokens: false,
        }
    }

    /// Cached mark of a scope.
    #[must_use]
    pub fn mark(&self, scope: &Scope) -> Arc<CachedMark> {
        self.marks.mark(scope)
    }

    /// Mark of a scope, if it is known to be above a token.
    #[must_use]
    pub fn mark_above(&self, scope: &Scope, token: Token) -> Option<Mark> {
        self.marks.find(scope)?.mark_above(token)
    }

    /// Current cached mark of a scope that the policy names.
    #[inline]
    fn newest(&self, id: ScopeId) -> Option<&Arc<CachedMark>> {
        self.named.get(id.index()).map(|mark| mark.newest())
    }

    /// Index in the policy of a cached mark's scope, if the policy names it.
    #[inline]
    fn place(&self, mark: &CachedMark) -> Option<ScopeId> {
        self.places.get(mark.number()).copied().flatten()
    }
}

fn places(policy: &Policy, named: &[Arc<CachedMark>]) -> Box<[Option<ScopeId>]> {
    let count = named.iter().map(|mark| mark.number() + 1).max();
    let mut places = vec![None; count.unwrap_or_default()];
    for (id, mark) in policy.ids().zip(named) {
        if let Some(place) = places.get_mut(mark.number()) {
            *place = Some(id);
        }
    }
    places.into()
}

/// Rules for one session. It has no list of scopes, so its size does not depend on their number.
#[derive(Debug, Clone)]
pub struct SessionFence {
    fence: Arc<Fence>,
    rules: SessionPolicy,
    /// Whether the session's listener gives it its tokens.
    is_given_tokens: bool,
}

impl SessionFence {
    /// The same rules for a session whose listener gives it its tokens.
    #[must_use]
    pub fn with_given_tokens(self) -> Self {
        Self {
            is_given_tokens: true,
            ..self
        }
    }

    /// Whether the session's listener gives it its tokens, so that it declares none.
    #[must_use]
    pub const fn is_given_tokens(&self) -> bool {
        self.is_given_tokens
    }

    /// Fence that it belongs to.
    #[must_use]
    pub const fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// Rules of the policy for the session.
    #[must_use]
    pub const fn rules(&self) -> &SessionPolicy {
        &self.rules
    }

    /// Scope of a bare number, unless the session has set another.
    #[must_use]
    pub fn default_scope(&self) -> &Scope {
        self.named(self.rules.scope()).scope()
    }

    /// Scopes that the policy names.
    pub(super) fn scopes(&self) -> impl Iterator<Item = &Scope> {
        self.fence.named.iter().map(|mark| mark.scope())
    }

    pub(super) fn named(&self, id: ScopeId) -> &Arc<CachedMark> {
        // A policy returns indices of its own scopes only.
        let named = self.fence.named.get(id.index());
        named.unwrap_or(&self.fence.default).newest()
    }

    /// Mode of a refusal that concerns a scope; with `None`, of one that concerns none.
    #[must_use]
    pub fn mode(&self, scope: Option<&Scope>) -> Mode {
        match self.fence.overall {
            Mode::Observe => Mode::Observe,
            Mode::Enforce => self.rules.mode(scope.map(Scope::as_str)),
        }
    }

    /// Mode of a refusal.
    #[must_use]
    pub fn mode_of(&self, rejection: &Rejection) -> Mode {
        self.mode(rejection.scope.as_ref())
    }

    /// Whether a token counts: it is current, and accepted in the way that its scope asks for.
    #[inline]
    pub(super) fn counts(&self, token: &HeldToken) -> bool {
        token.is_current() && self.is_accepted(token)
    }

    /// Whether a token was accepted in the way that its scope asks for now.
    #[inline]
    pub fn is_accepted(&self, token: &HeldToken) -> bool {
        match token.grant {
            GrantMode::Enforced => true,
            GrantMode::Observed => self.mode(Some(token.mark.scope())) == Mode::Observe,
        }
    }

    /// Whether a takeover ends a session that holds this token.
    #[must_use]
    pub fn ends_sessions(&self, token: &HeldToken) -> bool {
        token.grant == GrantMode::Enforced || self.mode(Some(token.mark.scope())) == Mode::Enforce
    }

    /// Whether a session holds a token of each of these scopes.
    #[inline]
    pub(super) fn holds_each(&self, scopes: &[ScopeId], held: &HeldTokens) -> bool {
        // Ends at the first missing one: a session has few tokens.
        scopes.iter().all(|id| {
            let mark = self.fence.newest(*id);
            mark.is_some_and(|mark| held.token(mark).is_some())
        })
    }

    /// Whether the session may write anything, so that PostgreSQL must let it.
    #[inline]
    #[must_use]
    pub fn may_write(&self, held: Option<&Arc<HeldTokens>>) -> bool {
        match (self.opening(), held) {
            (opening, None) => opening.is_none(),
            (opening, Some(held)) => self.may_write_with(opening, held),
        }
    }

    fn may_write_with(&self, opening: Option<&[ScopeId]>, held: &HeldTokens) -> bool {
        let opens = opening.is_none_or(|opening| {
            // Over its tokens, which are few, and not the scopes, which may be very many.
            let mut tokens = held.tokens().iter();
            tokens.any(|token| self.is_opened_by(opening, &token.mark))
        });
        opens && self.all_count_or_are_observed(held)
    }

    /// Sorted scopes of which one token lets the session write something. `None`: it may write without.
    #[inline]
    fn opening(&self) -> Option<&[ScopeId]> {
        match self.fence.overall {
            Mode::Observe => None,
            Mode::Enforce => self.rules.read_only_until(),
        }
    }

    /// Whether PostgreSQL lets the session write now, but would not if nothing were only observed.
    #[must_use]
    pub fn would_be_read_only(&self, held: Option<&Arc<HeldTokens>>) -> bool {
        let Some(until) = self.rules.read_only_if_enforced() else {
            return false;
        };
        let tokens = held.map_or(&[][..], |held| held.tokens());
        let opens = |token: &HeldToken| self.is_opened_by(until, &token.mark);
        self.opening().is_none() && !tokens.iter().any(opens)
    }

    /// Whether a cached mark is the current one of one of these scopes.
    #[inline]
    fn is_opened_by(&self, opening: &[ScopeId], mark: &Arc<CachedMark>) -> bool {
        self.is_among(opening, mark) && Arc::ptr_eq(mark.newest(), mark)
    }

    /// Whether a cached mark belongs to one of these scopes.
    #[inline]
    fn is_among(&self, scopes: &[ScopeId], mark: &CachedMark) -> bool {
        let place = self.fence.place(mark);
        place.is_some_and(|id| scopes.binary_search(&id).is_ok())
    }

    #[inline]
    fn all_count_or_are_observed(&self, held: &HeldTokens) -> bool {
        let mut tokens = held.tokens().iter();
        tokens
            .all(|token| self.counts(token) || self.mode(Some(token.mark.scope())) == Mode::Observe)
    }

    /// Whether the tokens of a value would let the session write something that it may not write without them.
    #[must_use]
    pub fn opens(&self, value: &TokenValue) -> bool {
        let opening = self.opening().unwrap_or_default();
        let mut claims = value.claims().iter();
        claims.any(|(scope, _)| {
            let mark = self.fence.marks.find(scope);
            mark.is_some_and(|mark| self.is_among(opening, &mark))
        })
    }

    /// Checks that the session may declare a scope for this lifetime.
    ///
    /// # Errors
    ///
    /// The rejection for the client.
    pub fn may_declare(
        &self,
        scope: &Scope,
        token: Option<Token>,
        lifetime: Lifetime,
    ) -> Result<(), Box<Rejection>> {
        let allowed = self.rules.may_declare(scope.as_str(), lifetime);
        allowed.map_err(|why| Box::new(Rejection::may_not_declare(scope, token, &why)))
    }

    /// Checks that the session itself may declare all scopes of a value.
    ///
    /// # Errors
    ///
    /// The rejection for the client.
    pub(super) fn may_set_all(
        &self,
        value: &TokenValue,
        lifetime: Lifetime,
    ) -> Result<(), Box<Rejection>> {
        if self.is_given_tokens {
            return Err(Box::new(Rejection::tokens_are_given()));
        }
        self.may_declare_all(value, lifetime)
    }

    /// Checks [`Self::may_declare`] for all scopes of a value.
    ///
    /// # Errors
    ///
    /// The rejection for the client.
    pub fn may_declare_all(
        &self,
        value: &TokenValue,
        lifetime: Lifetime,
    ) -> Result<(), Box<Rejection>> {
        let mut claims = value.claims().iter();
        claims.try_for_each(|(scope, claim)| self.may_declare(scope, claim.token(), lifetime))
    }

    /// Checks that no known mark is above a token, so that nobody need be asked. If a scope is only observed, its
    /// declaration says so, once.
    ///
    /// # Errors
    ///
    /// The rejection for the client.
    pub fn check_marks(&self, value: &TokenValue) -> Result<(), Box<Rejection>> {
        for (scope, claim) in value.claims() {
            if self.mode(Some(scope)) == Mode::Enforce
                && let Some(token) = claim.token()
                && let Some(mark) = self.fence.mark_above(scope, token)
            {
                return Err(Box::new(Rejection::behind(scope, *claim, mark)));
            }
        }
        Ok(())
    }
}
