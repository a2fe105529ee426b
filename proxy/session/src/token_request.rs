//! Tokens that a session asks for, and what its declaration obtains.

use std::sync::Arc;

use pgpalisade_authority::{Claim, Scope, Token};
use pgpalisade_policies::Mode;

use crate::fence::{
    Fence, GrantMode, HeldToken, HeldTokens, Identified, Purpose, SessionFence, Terms, TokenValue,
};
use crate::rejection::Rejection;

/// Tokens to declare for a session, and on what terms.
#[derive(Debug, Clone)]
pub struct TokenRequest {
    value: TokenValue,
    /// Terms of each token.
    terms: Box<[Terms]>,
}

/// Result of a declaration, or the refusal that counts.
pub type Declared = Result<Obtained, Box<Rejection>>;

/// Results of a declaration that the request does not tell.
#[derive(Debug, Default)]
pub struct Obtained {
    /// Tokens of its takes. One whose refusal is only observed has none.
    pub taken: Vec<(Scope, Token)>,
    /// Refusals that were only observed.
    pub observed: Vec<Rejection>,
}

impl TokenRequest {
    /// Request for the tokens of `value`, on the terms of the session's policy.
    #[must_use]
    pub fn new(fence: &SessionFence, value: TokenValue) -> Self {
        let claims = value.claims().iter();
        let terms = claims.map(|(scope, _)| Terms {
            purpose: purpose(fence, scope),
            bounds: fence.rules().policy().bounds(scope.as_str()),
        });
        Self {
            terms: terms.collect(),
            value,
        }
    }

    /// Request for tokens that were accepted before, for another server connection. So their marks are not lower, or
    /// the scope was repaired meanwhile: none is raised.
    pub(super) fn again(fence: &SessionFence, held: &HeldTokens) -> Self {
        let mut again = Self::new(fence, held.value());
        for (terms, token) in again.terms.iter_mut().zip(held.tokens()) {
            if token.grant == GrantMode::Enforced {
                raise_none(terms);
            }
        }
        again
    }

    /// Request for the token of a term, which the proxy has declared itself. After a repair of the scope it must not
    /// raise the mark again.
    #[must_use]
    pub fn of_term(fence: &SessionFence, value: TokenValue) -> Self {
        let mut request = Self::new(fence, value);
        request.terms.iter_mut().for_each(raise_none);
        request
    }

    /// Value that states the tokens.
    #[must_use]
    pub const fn value(&self) -> &TokenValue {
        &self.value
    }

    /// Claims of the value, each with its terms.
    pub fn claims(&self) -> impl Iterator<Item = (&Scope, Claim, &Terms)> {
        let claims = self.value.claims().iter().zip(&self.terms);
        claims.map(|((scope, claim), terms)| (scope, *claim, terms))
    }

    /// Tokens that the session then holds, if any. `session` is `None` if it was not found, which only observing
    /// allows.
    pub(super) fn tokens(
        &self,
        fence: &Fence,
        obtained: &Obtained,
        session: Option<Identified>,
    ) -> Option<Arc<HeldTokens>> {
        let tokens = self.claims().filter_map(|(scope, claim, terms)| {
            let taken = || obtained.taken.iter().find(|(known, _)| known == scope);
            Some(HeldToken {
                mark: fence.mark(scope),
                token: match claim {
                    Claim::Token(token) => token,
                    Claim::After(_) | Claim::Next | Claim::Lease(_) => taken()?.1,
                },
                timeline: session.map_or(u32::MAX, |session| session.cluster.timeline),
                grant: match terms.purpose {
                    Purpose::Admit => GrantMode::Enforced,
                    Purpose::Observe | Purpose::ObserveUnregistered => GrantMode::Observed,
                },
            })
        });
        let tokens: Box<[_]> = tokens.collect();
        (!tokens.is_empty()).then(|| Arc::new(HeldTokens::new(tokens)))
    }

    /// Whether it asks for a lease, which another session may hold.
    #[must_use]
    pub fn waits(&self) -> bool {
        let mut claims = self.value.claims().iter();
        claims.any(|(_, claim)| matches!(claim, Claim::Lease(_)))
    }

    /// Whether a refusal of any of its tokens would only be observed.
    #[must_use]
    pub fn is_only_observed(&self) -> bool {
        let mut terms = self.terms.iter();
        terms.all(|terms| terms.purpose != Purpose::Admit)
    }
}

/// Refuses a token above the mark. An election does so anyway, for all but the leader's.
fn raise_none(terms: &mut Terms) {
    if terms.bounds.election().is_none() {
        terms.bounds.max_step = Some(0);
    }
}

/// Purpose of a declaration in this scope.
fn purpose(fence: &SessionFence, scope: &Scope) -> Purpose {
    match fence.mode(Some(scope)) {
        Mode::Enforce => Purpose::Admit,
        Mode::Observe if fence.rules().observes_session() => Purpose::ObserveUnregistered,
        Mode::Observe => Purpose::Observe,
    }
}
