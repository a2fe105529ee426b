//! Rules that decide what a session must hold for a statement.
//!
//! [`Policy::for_session`] finds the rules for one session, and [`SessionPolicy::requirement`] decides each
//! statement.

mod compile;
mod decide;
mod declare;
mod file;
mod glob;
mod listing;
mod needed_scopes;
mod network;
mod remark;
mod requirement;
mod session;
mod tables;
mod terms;
#[cfg(test)]
mod tests;
mod warn;
mod who;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use strum::{AsRefStr, EnumIter, IntoStaticStr};

use crate::object_name::ObjectName;

pub use decide::Decision;
pub use declare::MayNotDeclare;
pub use file::{POLICY_BYTES_MAX, POLICY_KEYS, PolicyKey, nearest, type_in_words};
pub use network::Network;
pub use remark::{PolicyErrors, Remark};
pub use requirement::{Reason, Requirement, ScopeSet};
pub use session::{SessionPolicy, Who};
pub use terms::{PoolMode, SessionRule};

use declare::Declarers;
use listing::TablePatterns;
use terms::Terms;
use who::WhoPattern;

pub const DEFAULT_SCOPE: &str = "default";

/// A scope that a policy names, as an index into [`Policy::scopes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(u32);

impl ScopeId {
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AsRefStr, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Mode {
    #[default]
    Enforce,
    Observe,
}

/// Limits on a declaration, and on the takeover that it causes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBounds {
    /// Maximum by which one declaration may raise an existing mark.
    pub max_step: Option<u64>,
    /// Highest accepted token.
    pub max_token: Option<u64>,
    /// Numbers that a session may declare; `None` for any.
    pub numbers: Option<Numbers>,
    /// Treatment of prepared transactions by a takeover; `None` to report them.
    pub prepared: Option<PreparedTransactions>,
    /// Extra time before the lease of a vanished holder is free.
    pub lock_delay: Option<Duration>,
    /// Maximum number of scopes, checked when this one is created; `None` if the policy names it.
    pub max_scopes: Option<u64>,
}

impl TokenBounds {
    #[must_use]
    pub const fn election(&self) -> Option<&Arc<str>> {
        match &self.numbers {
            Some(Numbers::Election(election)) => Some(election),
            Some(Numbers::Any | Numbers::Issued) | None => None,
        }
    }
}

/// Numbers that a session may declare as its token.
#[derive(Clone, Debug, Default, PartialEq, Eq, AsRefStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Numbers {
    #[default]
    Any,
    /// Numbers that were issued to a session that took the next one.
    Issued,
    /// Only the number of the leader in this etcd election.
    Election(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectedScope {
    pub scope: Box<str>,
    pub election: Arc<str>,
    pub line: u32,
    pub column: u32,
}

/// Treatment of the prepared transactions that a takeover finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AsRefStr, EnumIter)]
#[strum(serialize_all = "kebab-case")]
pub enum PreparedTransactions {
    #[default]
    Report,
    /// Fails while there are older ones.
    Refuse,
    RollBack,
}

/// The rules of one proxy. By default every write needs the current token of scope [`DEFAULT_SCOPE`], and reads are
/// free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    scopes: Vec<Box<str>>,
    ids: HashMap<Box<str>, ScopeId>,
    tables: TablePatterns,
    /// The scopes that list tables, in their order.
    table_scopes: Box<[ScopeId]>,
    modes: Modes,
    /// Complete bounds of the scopes that set some.
    bounds: BTreeMap<Box<str>, TokenBounds>,
    default_bounds: TokenBounds,
    max_scopes: u64,
    elected: Vec<ElectedScope>,
    declarers: Declarers,
    defaults: Arc<Terms>,
    rules: Vec<Rule>,
    warnings: Vec<Remark>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Modes {
    of_scopes: BTreeMap<Box<str>, Mode>,
    /// Mode of `[defaults]`.
    default: Mode,
}

impl Modes {
    fn of(&self, terms: &Terms, scope: Option<&str>) -> Mode {
        let by_scope = || scope.map_or(self.default, |scope| self.of_scope(scope));
        terms.mode.unwrap_or_else(by_scope)
    }

    /// Mode of a scope if no session rule sets another.
    fn of_scope(&self, scope: &str) -> Mode {
        let own = self.of_scopes.get(scope).copied();
        own.unwrap_or(self.default)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    who: WhoPattern,
    terms: Arc<Terms>,
}

impl Policy {
    /// The first is that of a session that names none.
    #[must_use]
    pub fn scopes(&self) -> &[Box<str>] {
        &self.scopes
    }

    pub fn ids(&self) -> impl Iterator<Item = ScopeId> {
        (0..).zip(&self.scopes).map(|(place, _)| ScopeId(place))
    }

    /// Mode of a scope if no session rule sets another.
    #[must_use]
    pub fn mode_of(&self, scope: &str) -> Mode {
        self.modes.of_scope(scope)
    }

    /// Whether a scope lists a table of this name.
    #[must_use]
    pub fn may_list(&self, name: &ObjectName) -> bool {
        let mut is_listed = false;
        self.tables.matching(name, &mut |_| is_listed = true);
        is_listed
    }

    /// By exactly this name.
    fn lists_by_name(&self, name: &ObjectName) -> bool {
        let mut is_listed = false;
        self.tables.matching(name, &mut |listed| {
            is_listed |= listed.pattern.table.exact().is_some();
        });
        is_listed
    }

    #[must_use]
    pub fn bounds(&self, scope: &str) -> TokenBounds {
        let own = self.bounds.get(scope).unwrap_or(&self.default_bounds);
        let most = self.max_scopes.saturating_add(self.scopes.len() as u64);
        TokenBounds {
            max_scopes: (!self.names(scope)).then_some(most),
            ..own.clone()
        }
    }

    /// In the order of the file.
    #[must_use]
    pub fn elected(&self) -> &[ElectedScope] {
        &self.elected
    }

    /// Legal but surprising parts of its file, from the top.
    #[must_use]
    pub fn warnings(&self) -> &[Remark] {
        &self.warnings
    }

    #[must_use]
    pub(crate) fn names(&self, scope: &str) -> bool {
        self.ids.contains_key(scope)
    }

    /// Whether a rule gives sessions server connections of their own.
    #[must_use]
    pub fn gives_own_connections(&self) -> bool {
        let own = Some(PoolMode::Session);
        self.rules.iter().any(|rule| rule.terms.pool == own)
    }

    #[must_use]
    pub fn says_who_may_declare(&self) -> bool {
        let mut terms = self
            .rules
            .iter()
            .map(|rule| &rule.terms)
            .chain([&self.defaults]);
        self.needs_identity() || terms.any(|terms| terms.says_what_it_declares())
    }

    fn needs_identity(&self) -> bool {
        !self.declarers.holders.is_empty()
    }

    fn name_of(&self, scope: ScopeId) -> &str {
        self.scopes
            .get(scope.index())
            .map_or(DEFAULT_SCOPE, |name| &**name)
    }
}
