//! Terms for the sessions of one rule, or for those that no rule matches.

use std::fmt;
use std::sync::Arc;

use strum::{AsRefStr, EnumIter};

use super::declare::{Declarable, DeclareFor};
use super::{Mode, ScopeId};
use crate::effects::Category;

/// Requirement of a write to a table that no scope lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AsRefStr, EnumIter)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum Writes {
    /// The current token of the session's scope.
    #[default]
    Token,
    Allow,
    Refuse,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AsRefStr, EnumIter)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum Reads {
    #[default]
    Allow,
    /// The same token as a write.
    Current,
}

/// Tokens for a statement whose text does not name its tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AsRefStr, EnumIter)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum UnknownTables {
    /// Those of every scope that lists tables, and of the session's scope.
    #[default]
    EveryScope,
    /// Only that of the session's scope.
    SessionScope,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRule {
    pub number: usize,
    pub name: Option<Box<str>>,
    pub line: u32,
}

impl fmt::Display for SessionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "rule {name:?}, line {}", self.line),
            None => write!(f, "session rule {}, line {}", self.number, self.line),
        }
    }
}

/// Time for which a client has a server connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, AsRefStr)]
#[strum(serialize_all = "kebab-case")]
pub enum PoolMode {
    Session,
    Transaction,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum By {
    #[default]
    Nobody,
    /// This line of `[defaults]`.
    Defaults {
        line: u32,
    },
    Rule,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Said<T> {
    pub(super) value: T,
    pub(super) by: By,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) rule: Option<SessionRule>,
    pub(super) writes: Said<Writes>,
    pub(super) reads: Said<Reads>,
    pub(super) unknown_tables: Said<UnknownTables>,
    /// Takes precedence over that of the scopes.
    pub(super) mode: Option<Mode>,
    /// If a rule says so.
    pub(super) pool: Option<PoolMode>,
    pub(super) scope: ScopeId,
    pub(super) refused: Box<[(Category, By)]>,
    pub(super) declarable: Said<Declarable>,
    pub(super) declare_for: Said<DeclareFor>,
    pub(super) follows: Follows,
}

/// Consequences of terms and scopes together, computed once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Follows {
    /// See `SessionPolicy::unlooked`.
    pub(super) unlooked: Option<Arc<[ScopeId]>>,
    /// See `SessionPolicy::read_only_until`.
    pub(super) read_only_until: Option<Arc<[ScopeId]>>,
    /// See `SessionPolicy::read_only_if_enforced`.
    pub(super) read_only_if_enforced: Option<Arc<[ScopeId]>>,
    /// Whether refusals are only observed while a scope that the session may need is enforced.
    pub(super) enforced_behind_refusals: bool,
}

impl Terms {
    /// Whether a rule frees its sessions from every token for writing.
    pub(super) fn is_exempt(&self) -> bool {
        self.writes.value == Writes::Allow && self.writes.by == By::Rule
    }

    pub(super) fn refuses_all_writes(&self) -> bool {
        self.writes.value == Writes::Refuse && self.writes.by == By::Rule
    }

    pub(super) fn refuses(&self, category: Category) -> Option<By> {
        let mut refused = self.refused.iter();
        refused
            .find(|(kind, _)| *kind == category)
            .map(|(_, by)| *by)
    }

    pub(super) fn source(&self, by: By) -> RuleOrigin<'_> {
        RuleOrigin(by, self.rule.as_ref())
    }
}

pub(super) struct RuleOrigin<'a>(By, Option<&'a SessionRule>);

impl fmt::Display for RuleOrigin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (By::Rule, Some(rule)) => write!(f, "{rule}"),
            (By::Defaults { line }, _) => write!(f, "[defaults], line {line}"),
            (By::Nobody | By::Rule, _) => f.write_str("the default"),
        }
    }
}
