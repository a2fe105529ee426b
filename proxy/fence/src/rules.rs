//! The policy in force with the marks of its scopes, and what of it holds for one session.

use std::str::FromStr;
use std::sync::Arc;

use pgpalisade_authority::{Mark, Scope, ScopeError, Token};
use pgpalisade_policies::{
    DEFAULT_SCOPE, Lifetime, Mode, Policy, ReadOnlyGuard, ScopeId, SessionPolicy, Who,
};

use super::mark_cache::{CachedMark, MarkCache};
use super::{GrantMode, HeldToken, HeldTokens, TokenValue};
use crate::rejection::Rejection;

/// Everything that a decision rests on besides the session. It does not change: a reload makes another one.
#[derive(Debug)]
pub struct Fence {
    policy: Arc<Policy>,
    cells: Arc<MarkCache>,
    /// Of the scopes that the policy names, in its order.
    named: Box<[Arc<CachedMark>]>,
    /// The places in `named`, by the numbers of the cells.
    places: Box<[Option<ScopeId>]>,
    /// Of [`DEFAULT_SCOPE`].
    default: Arc<CachedMark>,
    overall: Mode,
}

impl Fence {
    /// A fence for one policy, with the marks that this proxy knows. With `overall` to observe, nothing is refused
    /// whatever the policy says.
    ///
    /// # Errors
    ///
    /// Where the policy names a scope by something that is no name.
    pub fn new(policy: Policy, cells: Arc<MarkCache>, overall: Mode) -> Result<Self, ScopeError> {
        let cell = |name: &str| Scope::from_str(name).map(|scope| cells.cell(&scope));
        let named = policy.scopes().iter().map(|name| cell(name));
        let named: Box<[_]> = named.collect::<Result<_, _>>()?;
        Ok(Self {
            places: places(&policy, &named),
            named,
            default: cell(DEFAULT_SCOPE)?,
            policy: Arc::new(policy),
            cells,
            overall,
        })
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Whether refusals in a scope are carried out, where no rule for sessions says another.
    #[must_use]
    pub fn mode_of_scope(&self, scope: &str) -> Mode {
        match self.overall {
            Mode::Observe => Mode::Observe,
            Mode::Enforce => self.policy.mode_of(scope),
        }
    }

    /// What holds for a session.
    #[must_use]
    pub fn for_session(self: &Arc<Self>, who: &Who<'_>) -> SessionFence {
        SessionFence {
            rules: self.policy.for_session(who),
            fence: Arc::clone(self),
        }
    }

    /// What this proxy knows of a scope's mark.
    #[must_use]
    pub fn cell(&self, scope: &Scope) -> Arc<CachedMark> {
        self.cells.cell(scope)
    }

    /// The mark of a scope, where it is known to stand above a token.
    #[must_use]
    pub fn mark_above(&self, scope: &Scope, token: Token) -> Option<Mark> {
        self.cells.find(scope)?.mark_above(token)
    }

    /// The cell in use of a scope that the policy names.
    #[inline]
    fn newest(&self, id: ScopeId) -> Option<&Arc<CachedMark>> {
        self.named.get(id.index()).map(|cell| cell.newest())
    }

    /// The place in the policy of the scope that a cell is for, where it names it.
    #[inline]
    fn place(&self, cell: &CachedMark) -> Option<ScopeId> {
        self.places.get(cell.number()).copied().flatten()
    }
}

fn places(policy: &Policy, named: &[Arc<CachedMark>]) -> Box<[Option<ScopeId>]> {
    let count = named.iter().map(|cell| cell.number() + 1).max();
    let mut places = vec![None; count.unwrap_or_default()];
    for (id, cell) in policy.ids().zip(named) {
        if let Some(place) = places.get_mut(cell.number()) {
            *place = Some(id);
        }
    }
    places.into()
}

/// What holds for one session. It is as small with many scopes as with few: it has none of its own.
#[derive(Debug, Clone)]
pub struct SessionFence {
    fence: Arc<Fence>,
    rules: SessionPolicy,
}

impl SessionFence {
    /// The fence that it is part of.
    #[must_use]
    pub const fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// What the policy says about the session.
    #[must_use]
    pub const fn rules(&self) -> &SessionPolicy {
        &self.rules
    }

    /// The scope of a bare number, where the session has not said another.
    #[must_use]
    pub fn default_scope(&self) -> &Scope {
        self.named(self.rules.scope()).scope()
    }

    /// Every scope that the policy names.
    pub(super) fn scopes(&self) -> impl Iterator<Item = &Scope> {
        self.fence.named.iter().map(|cell| cell.scope())
    }

    pub(super) fn named(&self, id: ScopeId) -> &Arc<CachedMark> {
        // A policy hands out places of its own scopes only.
        let named = self.fence.named.get(id.index());
        named.unwrap_or(&self.fence.default).newest()
    }

    /// Whether a refusal that concerns a scope is carried out; without one, a refusal that concerns none.
    #[must_use]
    pub fn mode(&self, scope: Option<&Scope>) -> Mode {
        match self.fence.overall {
            Mode::Observe => Mode::Observe,
            Mode::Enforce => self.rules.mode(scope.map(Scope::as_str)),
        }
    }

    /// Whether a refusal is carried out.
    #[must_use]
    pub fn mode_of(&self, rejection: &Rejection) -> Mode {
        self.mode(rejection.scope.as_ref())
    }

    /// Whether a binding counts: it is current, and accepted in the way that its scope asks for.
    #[inline]
    pub(super) fn counts(&self, binding: &HeldToken) -> bool {
        binding.is_current() && self.is_accepted(binding)
    }

    /// Whether a binding was accepted in the way that its scope asks for now.
    #[inline]
    pub fn is_accepted(&self, binding: &HeldToken) -> bool {
        match binding.footing {
            GrantMode::Enforced => true,
            GrantMode::Observed => self.mode(Some(binding.cell.scope())) == Mode::Observe,
        }
    }

    /// Whether a takeover ends a session for this token of it.
    #[must_use]
    pub fn ends_sessions(&self, binding: &HeldToken) -> bool {
        binding.footing == GrantMode::Enforced
            || self.mode(Some(binding.cell.scope())) == Mode::Enforce
    }

    /// Whether a session holds a token of each of these scopes.
    #[inline]
    pub(super) fn holds_each(&self, scopes: &[ScopeId], holding: &HeldTokens) -> bool {
        // Ends at the first that is missing: a session has few tokens.
        scopes.iter().all(|id| {
            let cell = self.fence.newest(*id);
            cell.is_some_and(|cell| holding.binding(cell).is_some())
        })
    }

    /// Whether the session may write anything at all, so that PostgreSQL has to let it.
    #[inline]
    #[must_use]
    pub fn may_write(&self, holding: Option<&Arc<HeldTokens>>) -> bool {
        match (self.opening(), holding) {
            (opening, None) => opening.is_none(),
            (opening, Some(holding)) => self.may_write_holding(opening, holding),
        }
    }

    fn may_write_holding(&self, opening: Option<&[ScopeId]>, holding: &HeldTokens) -> bool {
        let opens = opening.is_none_or(|opening| {
            // From its tokens, which are few, to the scopes, which may be very many.
            let mut bindings = holding.bindings().iter();
            bindings.any(|binding| self.is_opened_by(opening, &binding.cell))
        });
        opens && self.all_count_or_are_observed(holding)
    }

    /// The scopes, in order, of which the token of one lets it write something. `None`: it may without.
    #[inline]
    fn opening(&self) -> Option<&[ScopeId]> {
        match (self.fence.overall, self.rules.read_only_guard()) {
            (Mode::Observe, _) | (_, ReadOnlyGuard::Off) => None,
            (Mode::Enforce, ReadOnlyGuard::UntilHolding(scopes)) => Some(scopes),
        }
    }

    /// Whether a cell is the one in use of one of these scopes.
    #[inline]
    fn is_opened_by(&self, opening: &[ScopeId], cell: &Arc<CachedMark>) -> bool {
        let Some(id) = self.fence.place(cell) else {
            return false;
        };
        let newest = self.fence.newest(id);
        newest.is_some_and(|newest| Arc::ptr_eq(newest, cell)) && opening.binary_search(&id).is_ok()
    }

    /// Whether a cell is of one of these scopes.
    #[inline]
    fn is_among(&self, scopes: &[ScopeId], cell: &CachedMark) -> bool {
        let place = self.fence.place(cell);
        place.is_some_and(|id| scopes.binary_search(&id).is_ok())
    }

    #[inline]
    fn all_count_or_are_observed(&self, holding: &HeldTokens) -> bool {
        let mut bindings = holding.bindings().iter();
        bindings.all(|binding| {
            self.counts(binding) || self.mode(Some(binding.cell.scope())) == Mode::Observe
        })
    }

    /// Whether the tokens of a value would let the session write something that it may not write without.
    #[must_use]
    pub fn opens(&self, value: &TokenValue) -> bool {
        let opening = self.opening().unwrap_or_default();
        let mut claims = value.claims().iter();
        claims.any(|(scope, _)| {
            let cell = self.fence.cells.find(scope);
            cell.is_some_and(|cell| self.is_among(opening, &cell))
        })
    }

    /// Whether the session may declare a scope, and keep it for so long.
    ///
    /// # Errors
    ///
    /// What the client is told.
    pub fn may_declare(
        &self,
        scope: &Scope,
        token: Option<Token>,
        lifetime: Lifetime,
    ) -> Result<(), Box<Rejection>> {
        let allowed = self.rules.may_declare(scope.as_str(), lifetime);
        allowed.map_err(|why| Box::new(Rejection::may_not_declare(scope, token, &why)))
    }

    /// The same for all scopes of a value.
    ///
    /// # Errors
    ///
    /// What the client is told.
    pub fn may_declare_all(
        &self,
        value: &TokenValue,
        lifetime: Lifetime,
    ) -> Result<(), Box<Rejection>> {
        let mut claims = value.claims().iter();
        claims.try_for_each(|(scope, claim)| self.may_declare(scope, claim.token(), lifetime))
    }
}
