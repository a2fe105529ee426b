//! What a policy says about one session.

use std::net::IpAddr;
use std::sync::Arc;

use super::declare::Identity;
use super::terms::{SessionRule, Terms};
use super::{Mode, Policy, ScopeId};

/// Whose session it is, as its startup packet and its socket tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who<'a> {
    /// The user that it logs in as.
    pub user: &'a str,
    /// The database.
    pub database: &'a str,
    /// `application_name` of the startup packet. What is set later does not count.
    pub application_name: Option<&'a str>,
    /// The common name in the certificate of the client, where it has shown a valid one.
    pub common_name: Option<&'a str>,
    /// Where the client is; `None` on a unix socket.
    pub client: Option<IpAddr>,
}

/// What holds for one session. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SessionPolicy {
    policy: Arc<Policy>,
    terms: Arc<Terms>,
    /// Kept where a scope names its holders.
    identity: Option<Arc<Identity>>,
}

/// When PostgreSQL's own read-only mode guards a session against writes that no text shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backstop<'a> {
    /// Never: it may write without a token, or what it does is only observed.
    Off,
    /// Until it holds the current token of one of these scopes, which are in order.
    UntilHolding(&'a [ScopeId]),
}

impl Policy {
    /// What it says about a session: the first rule that matches, else the defaults.
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
    /// The policy that it is part of.
    #[must_use]
    pub const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The rule of the file that the session falls under; `None` where none matches it and the defaults hold.
    #[must_use]
    pub fn rule(&self) -> Option<&SessionRule> {
        self.terms.rule.as_ref()
    }

    /// The scope of a bare number, and of writes to tables that no scope lists.
    #[must_use]
    pub fn scope(&self) -> ScopeId {
        self.terms.scope
    }

    /// Holding the current tokens of all these scopes, the session may send whatever it likes, and no text needs a
    /// look. `None` where each does, because some kind of statement is refused.
    #[must_use]
    pub fn unlooked(&self) -> Option<&[ScopeId]> {
        self.terms.follows.unlooked.as_deref()
    }

    /// When its transactions are read-only.
    #[must_use]
    pub fn backstop(&self) -> Backstop<'_> {
        match &self.terms.follows.read_only_until {
            Some(scopes) => Backstop::UntilHolding(scopes),
            None => Backstop::Off,
        }
    }

    /// Whether a refusal that concerns a scope is carried out; without one, a refusal that concerns none. The mode of
    /// the session's rule counts before that of the scope, and that before the one of `[defaults]`.
    #[must_use]
    pub fn mode(&self, scope: Option<&str>) -> Mode {
        self.policy.modes.of(&self.terms, scope)
    }

    /// Whether the session itself is only observed, by a rule that names it: then no takeover may end it.
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
