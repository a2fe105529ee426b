//! What a policy says about one session.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Mode, Policy, Requirement, ScopeId, ScopeSet, SearchPath};
use crate::effects::Effects;
use crate::verdict::Class;

/// Whose session it is, as its startup packet and its socket tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who<'a> {
    /// The user that it logs in as.
    pub user: &'a str,
    /// The database.
    pub database: &'a str,
    /// `application_name` of the startup packet. What is set later does not count.
    pub application_name: Option<&'a str>,
    /// Where the client is; `None` on a unix socket.
    pub client: Option<IpAddr>,
}

/// What holds for one session. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SessionPolicy {
    policy: Arc<Policy>,
}

/// When PostgreSQL's own read-only mode guards a session against writes that no text shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backstop<'a> {
    /// Never: it may write without a token, or what it does is only observed.
    Off,
    /// Until it holds the current token of one of these scopes.
    UntilHolding(&'a [ScopeId]),
}

const DEFAULT: ScopeId = ScopeId(0);

impl Policy {
    /// What it says about a session.
    #[must_use]
    pub fn for_session(self: &Arc<Self>, _who: &Who<'_>) -> SessionPolicy {
        SessionPolicy {
            policy: Arc::clone(self),
        }
    }
}

impl SessionPolicy {
    /// The policy that it is part of.
    #[must_use]
    pub const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The scope of a bare number, and of writes to tables that no scope lists.
    #[must_use]
    pub const fn scope(&self) -> ScopeId {
        DEFAULT
    }

    /// What a statement with these effects needs.
    #[must_use]
    pub fn requirement(&self, effects: &Effects, _path: SearchPath<'_>) -> Requirement {
        match effects.class {
            Class::Read => Requirement::Free,
            Class::Write => Requirement::Current(ScopeSet::One(DEFAULT)),
        }
    }

    /// Holding the current tokens of all these scopes, the session may send whatever it likes, and no text needs a
    /// look. `None` where each does.
    #[must_use]
    pub const fn unlooked(&self) -> Option<&[ScopeId]> {
        Some(&[DEFAULT])
    }

    /// When its transactions are read-only.
    #[must_use]
    pub const fn backstop(&self) -> Backstop<'_> {
        Backstop::UntilHolding(&[DEFAULT])
    }

    /// Whether the session itself is only observed, by a rule that names it: then no takeover may end it.
    #[must_use]
    pub const fn observes_session(&self) -> bool {
        false
    }

    /// Whether a refusal that concerns a scope is carried out; without one, a refusal that concerns none.
    #[must_use]
    pub const fn mode(&self, _scope: Option<&str>) -> Mode {
        Mode::Enforce
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::Tables;

    #[test]
    fn without_a_file_writes_need_the_token_and_reads_nothing() {
        let who = Who {
            user: "u",
            database: "d",
            application_name: None,
            client: None,
        };
        let session = Arc::new(Policy::default()).for_session(&who);
        let of = |effects: &Effects| session.requirement(effects, SearchPath::Unknown);
        assert_eq!(of(&Effects::none()), Requirement::Free);
        let needs = Requirement::Current(ScopeSet::One(DEFAULT));
        assert_eq!(of(&Effects::unknown(None)), needs);
        let named = Effects {
            writes: Tables::none(),
            ..Effects::unknown(None)
        };
        assert_eq!(of(&named), needs);
    }
}
