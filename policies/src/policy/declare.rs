//! Decides who may declare which scope, and for how long.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use strum::{AsRefStr, EnumIter};

use super::session::{SessionPolicy, Who};
use super::terms::{By, Said, Terms};
use super::who::WhoPattern;
use super::{Policy, Rule};
use crate::control::Lifetime;

/// Scopes that the sessions of a rule may declare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Declarable {
    #[default]
    Any,
    Listed(Arc<[Box<str>]>),
}

/// Duration for which the sessions of a rule may declare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AsRefStr, EnumIter)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum DeclareFor {
    #[default]
    Session,
    /// The server connection may serve another client in the next transaction.
    Transaction,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holders {
    pub(super) who: WhoPattern,
    pub(super) line: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AllowedScopes {
    #[default]
    Any,
    /// Only those that the policy names, because of this line.
    Listed { line: u32 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Declarers {
    /// By scope.
    pub(super) holders: BTreeMap<Box<str>, Holders>,
    pub(super) scopes: AllowedScopes,
}

/// Identity of a session, for scopes that name their holders.
#[derive(Debug)]
pub(super) struct Identity {
    user: Box<str>,
    database: Box<str>,
    application_name: Option<Box<str>>,
    common_name: Option<Box<str>>,
    client: Option<IpAddr>,
}

impl Identity {
    pub(super) fn of(who: &Who<'_>) -> Self {
        Self {
            user: who.user.into(),
            database: who.database.into(),
            application_name: who.application_name.map(Into::into),
            common_name: who.common_name.map(Into::into),
            client: who.client,
        }
    }

    fn who(&self) -> Who<'_> {
        Who {
            user: &self.user,
            database: &self.database,
            application_name: self.application_name.as_deref(),
            common_name: self.common_name.as_deref(),
            client: self.client,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MayNotDeclare {
    pub why: String,
    pub hint: String,
}

impl Policy {
    /// Whether the scope may have tokens: with `tokens.scopes = "listed"`, if the policy names it.
    #[must_use]
    pub fn may_exist(&self, scope: &str) -> bool {
        let is_listed = matches!(self.declarers.scopes, AllowedScopes::Listed { .. });
        !is_listed || self.names(scope)
    }

    /// Whether the policy names this user as one that may declare: as a holder, or in a session rule with scopes to
    /// declare.
    #[must_use]
    pub fn names_as_leader(&self, user: &str) -> bool {
        let holders = self.declarers.holders.values().map(|holders| &holders.who);
        let lists_scopes = |rule: &&Rule| match &rule.terms.declarable.value {
            Declarable::Any => false,
            Declarable::Listed(scopes) => !scopes.is_empty(),
        };
        let rules = self.rules.iter().filter(lists_scopes).map(|rule| &rule.who);
        let mut named = holders.chain(rules).flat_map(|who| &who.user);
        named.any(|glob| glob.matches(user))
    }
}

impl SessionPolicy {
    pub fn may_declare(&self, scope: &str, lifetime: Lifetime) -> Result<(), MayNotDeclare> {
        let policy = self.policy();
        if let AllowedScopes::Listed { line } = policy.declarers.scopes
            && !policy.may_exist(scope)
        {
            return Err(MayNotDeclare {
                why: format!(
                    "The policy does not name scope {scope:?}, and only the scopes it names may exist (tokens.scopes \
                        = \"listed\", line {line})"
                ),
                hint: format!(
                    "Correct the name, or have an operator add [scope.{scope}] to the policy."
                ),
            });
        }
        self.terms().may_declare(scope)?;
        if let Some(holders) = policy.declarers.holders.get(scope) {
            let is_one = |identity: &Arc<Identity>| holders.who.matches(&identity.who());
            if !self.identity().is_some_and(is_one) {
                return Err(MayNotDeclare {
                    why: format!(
                        "The policy lists the holders of scope {scope:?} (line {}), and this session is not one of \
                            them",
                        holders.line
                    ),
                    hint: format!(
                        "Connect as a holder of the scope, or have an operator change holders of [scope.{scope}] in \
                            the policy."
                    ),
                });
            }
        }
        self.terms().may_declare_for(lifetime)
    }

    #[must_use]
    pub fn declares(&self) -> String {
        let terms = self.terms();
        let mut words = match &terms.declarable.value {
            _ if terms.declares_nothing_by_default() => "nothing".to_owned(),
            Declarable::Any => "any scope".to_owned(),
            Declarable::Listed(scopes) if scopes.is_empty() => "nothing".to_owned(),
            Declarable::Listed(scopes) => scopes.join(", "),
        };
        let declarers = &self.policy().declarers;
        if !declarers.holders.is_empty() && words != "nothing" {
            words.push_str(", but of scopes with holders only those that name it");
        }
        if terms.declare_for.value == DeclareFor::Transaction && words != "nothing" {
            words.push_str(", each for one transaction only");
        }
        words
    }
}

impl Terms {
    /// Whether the sessions can write nothing and therefore declare nothing. A rule's own `declare` overrides this.
    fn declares_nothing_by_default(&self) -> bool {
        self.refuses_all_writes() && !matches!(self.declarable.by, By::Rule)
    }

    pub(super) fn says_what_it_declares(&self) -> bool {
        !matches!(
            (self.declarable.by, self.declare_for.by),
            (By::Nobody, By::Nobody)
        )
    }

    fn may_declare(&self, scope: &str) -> Result<(), MayNotDeclare> {
        let hint = |place: &str| {
            format!(
                "An operator can let these sessions declare it: declare = [\"{scope}\"] in {place}."
            )
        };
        if self.declares_nothing_by_default() {
            let source = self.source(self.writes.by);
            return Err(MayNotDeclare {
                why: format!(
                    "These sessions may not write, so they may not declare a token: writes = \"refuse\" ({source})"
                ),
                hint: hint("that rule of the policy"),
            });
        }
        let Said { value, by } = &self.declarable;
        match value {
            Declarable::Listed(scopes) if !scopes.iter().any(|one| **one == *scope) => {
                let source = self.source(*by);
                let which = match &**scopes {
                    [] => "no scope".to_owned(),
                    scopes => scopes.join(", "),
                };
                Err(MayNotDeclare {
                    why: format!("The policy lets these sessions declare {which} ({source})"),
                    hint: hint("a rule of the policy that matches them"),
                })
            }
            _ => Ok(()),
        }
    }

    fn may_declare_for(&self, lifetime: Lifetime) -> Result<(), MayNotDeclare> {
        match (self.declare_for.value, lifetime) {
            (DeclareFor::Session, _) | (_, Lifetime::Local) => Ok(()),
            (DeclareFor::Transaction, Lifetime::Session) => {
                let source = self.source(self.declare_for.by);
                Err(MayNotDeclare {
                    why: format!(
                        "A pooler may lend this connection to another client, so a token holds for one transaction \
                            only: declare = \"transaction\" ({source})"
                    ),
                    hint: "Declare it in each transaction: BEGIN; SET LOCAL fencing.token = 34; ...; COMMIT."
                        .to_owned(),
                })
            }
        }
    }
}
