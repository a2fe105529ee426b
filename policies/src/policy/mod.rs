//! From what a statement does, and whose session it is, to what the session must hold.
//!
//! A [`Policy`] is what an operator has written ([`Policy::parse`]), or the default. [`Policy::for_session`] looks up
//! what it says about one session. [`SessionPolicy::requirement`] is then asked for each statement.
//!
//! | file | what it does |
//! | --- | --- |
//! | `file` | reads the TOML text: every error at once, with its place |
//! | `compile` | works out of it what the sessions ask |
//! | `needed_scopes` | which scopes' tokens the terms of a session ask for |
//! | `glob`, `tables`, `network`, `who` | patterns, and what they match |
//! | `listing` | which scopes list a table: as fast with many as with few |
//! | `terms`, `session` | what holds for a session |
//! | `decide` | what a statement needs, and why |
//! | `declare` | who may declare which scope, and for how long |

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

use crate::object_name::ObjectName;

pub use decide::Decision;
pub use declare::MayNotDeclare;
pub use file::{POLICY_BYTES_MAX, POLICY_KEYS, PolicyKey, nearest, type_in_words};
pub use network::Network;
pub use remark::{PolicyErrors, Remark};
pub use requirement::{Reason, Requirement, ScopeSet};
pub use session::{Backstop, SessionPolicy, Who};
pub use terms::SessionRule;

use declare::Declarers;
use listing::Tables;
use terms::Terms;
use who::WhoPattern;

/// The scope of a session that names none.
pub const DEFAULT_SCOPE: &str = "default";

/// A scope that a policy names: its place in [`Policy::scopes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(u32);

impl ScopeId {
    /// Its place in [`Policy::scopes`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whether a refusal is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is.
    #[default]
    Enforce,
    /// It is only recorded.
    Observe,
}

/// How far one declaration may go, and what it does with what is in its way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBounds {
    /// How far one declaration may raise a mark that there is; `None`: as far as it likes.
    pub max_step: Option<u64>,
    /// The highest token that is accepted; `None`: the highest that there is.
    pub max_token: Option<u64>,
    /// Which numbers a session may bring; `None`: any.
    pub numbers: Option<Numbers>,
    /// What a takeover does with prepared transactions; `None`: it reports them.
    pub prepared: Option<PreparedTransactions>,
    /// How much longer a lease is nobody's whose holder has vanished; `None`: no longer.
    pub lock_delay: Option<Duration>,
    /// How many scopes there may be for this one to be made, where the policy does not name it.
    pub max_scopes: Option<u64>,
}

impl TokenBounds {
    /// The election whose number is the token; `None`: it comes from elsewhere.
    #[must_use]
    pub const fn election(&self) -> Option<&Arc<str>> {
        match &self.numbers {
            Some(Numbers::Election(election)) => Some(election),
            Some(Numbers::Any | Numbers::Issued) | None => None,
        }
    }
}

/// Which tokens a session may bring itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Numbers {
    /// Those of its election.
    #[default]
    Any,
    /// Those that were given out: to a session that has taken the next one.
    Issued,
    /// The number of who leads this election of etcd, and no other.
    Election(Arc<str>),
}

/// A scope whose token is the number of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectedScope {
    /// The scope.
    pub scope: Box<str>,
    /// The election.
    pub election: Arc<str>,
    /// Where the file says so: the line, from 1.
    pub line: u32,
    /// The character in the line, from 1.
    pub column: u32,
}

/// What a takeover does with the prepared transactions that it finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreparedTransactions {
    /// It names them in the log.
    #[default]
    Report,
    /// It fails while there are older ones.
    Refuse,
    /// It rolls older ones back.
    RollBack,
}

/// The rules of one proxy. The default holds without a policy file: every write needs the current token of scope
/// [`DEFAULT_SCOPE`], reads are free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    scopes: Vec<Box<str>>,
    /// Their places.
    ids: HashMap<Box<str>, ScopeId>,
    tables: Tables,
    /// The scopes that list tables, in their order.
    table_scopes: Box<[ScopeId]>,
    modes: Modes,
    /// Bounds of scopes that have some of their own, complete.
    bounds: BTreeMap<Box<str>, TokenBounds>,
    default_bounds: TokenBounds,
    max_scopes: u64,
    elected: Vec<ElectedScope>,
    declarers: Declarers,
    defaults: Arc<Terms>,
    rules: Vec<Rule>,
    warnings: Vec<Remark>,
}

/// What is enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Modes {
    /// Those of scopes that have one of their own.
    of_scopes: BTreeMap<Box<str>, Mode>,
    /// Below them, that of `[defaults]`.
    default: Mode,
}

impl Modes {
    fn of(&self, terms: &Terms, scope: Option<&str>) -> Mode {
        let by_scope = || scope.map_or(self.default, |scope| self.of_scope(scope));
        terms.mode.unwrap_or_else(by_scope)
    }

    /// Where no rule says another.
    fn of_scope(&self, scope: &str) -> Mode {
        let own = self.of_scopes.get(scope).copied();
        own.unwrap_or(self.default)
    }
}

/// A rule for sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    who: WhoPattern,
    terms: Arc<Terms>,
}

impl Policy {
    /// The names of all scopes that it knows. The first is the one of a session that names none.
    #[must_use]
    pub fn scopes(&self) -> &[Box<str>] {
        &self.scopes
    }

    /// Their places, in the same order.
    pub fn ids(&self) -> impl Iterator<Item = ScopeId> {
        (0..).zip(&self.scopes).map(|(place, _)| ScopeId(place))
    }

    /// Whether what is refused in a scope is refused, where no rule for sessions says another.
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

    /// Whether a scope lists a table by this very name.
    fn lists_by_name(&self, name: &ObjectName) -> bool {
        let mut is_listed = false;
        self.tables.matching(name, &mut |listed| {
            is_listed |= listed.pattern.table.exact().is_some();
        });
        is_listed
    }

    /// Its rules for sessions, in their order.
    pub fn rules(&self) -> impl Iterator<Item = &SessionRule> {
        self.rules
            .iter()
            .filter_map(|rule| rule.terms.rule.as_ref())
    }

    /// What limits the tokens of a scope, also of one that it does not name.
    #[must_use]
    pub fn bounds(&self, scope: &str) -> TokenBounds {
        let own = self.bounds.get(scope).unwrap_or(&self.default_bounds);
        let most = self.max_scopes.saturating_add(self.scopes.len() as u64);
        TokenBounds {
            max_scopes: (!self.names(scope)).then_some(most),
            ..own.clone()
        }
    }

    /// The scopes whose tokens are the numbers of elections, in the order of the file.
    #[must_use]
    pub fn elected(&self) -> &[ElectedScope] {
        &self.elected
    }

    /// What is legal in its file but may surprise, from the top.
    #[must_use]
    pub fn warnings(&self) -> &[Remark] {
        &self.warnings
    }

    /// Whether it names this scope.
    #[must_use]
    pub(crate) fn names(&self, scope: &str) -> bool {
        self.ids.contains_key(scope)
    }

    /// Whether it says anything about who may declare.
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
