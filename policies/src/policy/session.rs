//! Policy rules for one session.

use std::net::IpAddr;
use std::sync::Arc;

use super::declare::Identity;
use super::terms::{PoolMode, SessionRule, Terms};
use super::{Mode, Policy, ScopeId};

/// Identity of a session, from its startup packet and its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who<'a> {
    pub user: &'a str,
    pub database: &'a str,
    /// As in the startup packet. Later changes do not count.
    pub application_name: Option<&'a str>,
    /// Of a valid client certificate.
    pub common_name: Option<&'a str>,
    /// `None` on a unix socket.
    pub client: Option<IpAddr>,
}

/// Policy rules for one session. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SessionPolicy {
    policy: Arc<Policy>,
    terms: Arc<Terms>,
    /// Present only if a scope names its holders.
    identity: Option<Arc<Identity>>,
}

impl Policy {
    #[must_use]
    pub fn for_session(self: &Arc<Self>, who: &Who<'_>) -> SessionPolicy {
        let mut rules = self.rules.iter();
        let terms = rules
            .find(|rule| rule.who.matches(who))
            .map_or(&self.defaults, |rule| &rule.terms);
        SessionPolicy {
            policy: Arc::clone(self),
            terms: Arc::clone(terms),
            identity: self.needs_identity().then(|| Arc::new(Identity::of(who))),
        }
    }
}

impl SessionPolicy {
    #[must_use]
    pub const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    #[must_use]
    pub fn rule(&self) -> Option<&SessionRule> {
        self.terms.rule.as_ref()
    }

    /// The scope of a bare number, and of writes to tables that no scope lists.
    #[must_use]
    pub fn scope(&self) -> ScopeId {
        self.terms.scope
    }

    /// Scopes whose current tokens together let the session send anything, unexamined. `None` if some kind of
    /// statement is refused.
    #[must_use]
    pub fn unlooked(&self) -> Option<&[ScopeId]> {
        self.terms.follows.unlooked.as_deref()
    }

    /// Scopes of which the session must hold one current token until the read-only guard ends: PostgreSQL's own
    /// read-only mode, which refuses writes that no text shows. `None` if the session may write without a token, or its
    /// writes are only observed.
    #[must_use]
    pub fn read_only_until(&self) -> Option<&[ScopeId]> {
        self.terms.follows.read_only_until.as_deref()
    }

    /// As [`Self::read_only_until`], as if nothing were only observed.
    #[must_use]
    pub fn read_only_if_enforced(&self) -> Option<&[ScopeId]> {
        self.terms.follows.read_only_if_enforced.as_deref()
    }

    /// Mode for refusals that concern this scope, or no scope. The session's rule takes precedence over the scope,
    /// and the scope over `[defaults]`.
    #[must_use]
    pub fn mode(&self, scope: Option<&str>) -> Mode {
        self.policy.modes.of(&self.terms, scope)
    }

    /// Time for which a rule gives the session a server connection.
    #[must_use]
    pub fn pool_mode(&self) -> Option<PoolMode> {
        self.terms.pool
    }

    /// Whether a rule only observes the session itself, so that no takeover may end it.
    #[must_use]
    pub fn observes_session(&self) -> bool {
        self.terms.mode == Some(Mode::Observe)
    }

    pub(super) fn mode_of(&self, scope: ScopeId) -> Mode {
        self.mode(Some(self.policy.name_of(scope)))
    }

    pub(super) const fn identity(&self) -> Option<&Arc<Identity>> {
        self.identity.as_ref()
    }

    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }
}
