//! From what a statement does, and whose session it is, to what the session must hold.
//!
//! A [`Policy`] is what an operator has written ([`Policy::parse`]), or the default. [`Policy::for_session`] looks up
//! what it says about one session. [`SessionPolicy::requirement`] is then asked for each statement.
//!
//! | file | what it does |
//! | --- | --- |
//! | `file` | reads the TOML text: every error at once, with its place |
//! | `compile` | works out of it what the sessions ask |
//! | `glob`, `tables`, `network`, `who` | patterns, and what they match |
//! | `listing` | which scopes list a table: as fast with many as with few |
//! | `terms`, `session` | what holds for a session |
//! | `decide` | what a statement needs, and why |

mod compile;
mod decide;
mod file;
mod glob;
mod listing;
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

use std::collections::BTreeMap;
use std::sync::Arc;

pub use decide::Decision;
pub use file::{POLICY_BYTES_MAX, POLICY_KEYS, PolicyKey, nearest};
pub use remark::{PolicyErrors, Remark};
pub use requirement::{Reason, Requirement, ScopeSet, SearchPath};
pub use session::{Backstop, SessionPolicy, Who};
pub use terms::SessionRule;

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

/// How far one declaration may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenBounds {
    /// How far one declaration may raise a mark that there is; `None`: as far as it likes.
    pub max_step: Option<u64>,
    /// The highest token that is accepted; `None`: the highest that there is.
    pub max_token: Option<u64>,
}

/// The rules of one proxy. The default holds without a policy file: every write needs the current token of scope
/// [`DEFAULT_SCOPE`], reads are free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    scopes: Vec<Box<str>>,
    tables: Tables,
    /// The scopes that list tables, in their order.
    table_scopes: Box<[ScopeId]>,
    modes: Modes,
    /// Bounds of scopes that have some of their own, complete.
    bounds: BTreeMap<Box<str>, TokenBounds>,
    default_bounds: TokenBounds,
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

    /// Its rules for sessions, in their order.
    pub fn rules(&self) -> impl Iterator<Item = &SessionRule> {
        self.rules
            .iter()
            .filter_map(|rule| rule.terms.rule.as_ref())
    }

    /// What limits the tokens of a scope, also of one that it does not name.
    #[must_use]
    pub fn bounds(&self, scope: &str) -> TokenBounds {
        let own = self.bounds.get(scope).copied();
        own.unwrap_or(self.default_bounds)
    }

    /// What is legal in its file but may surprise, from the top.
    #[must_use]
    pub fn warnings(&self) -> &[Remark] {
        &self.warnings
    }

    fn name_of(&self, scope: ScopeId) -> &str {
        self.scopes
            .get(scope.index())
            .map_or(DEFAULT_SCOPE, |name| &**name)
    }
}
