//! A policy file as it was read, before it is compiled.

use std::sync::Arc;

use strum::{AsRefStr, EnumIter};
use toml::Spanned;

use crate::effects::Category;
use crate::policy::declare::DeclareFor;
use crate::policy::tables::TablePattern;
use crate::policy::terms::{PoolMode, Reads, UnknownTables, Writes};
use crate::policy::who::WhoPattern;
use crate::policy::{Mode, TokenBounds};

#[derive(Debug, Default)]
pub(in crate::policy) struct Draft {
    pub(in crate::policy) defaults: Section,
    pub(in crate::policy) tokens: TokenBounds,
    pub(in crate::policy) max_scopes: Option<u64>,
    pub(in crate::policy) scopes_may_be: Option<Spanned<Listing>>,
    pub(in crate::policy) scopes: Vec<ScopeDraft>,
    pub(in crate::policy) rules: Vec<RuleDraft>,
}

#[derive(Debug, Default)]
pub(in crate::policy) struct Section {
    pub(in crate::policy) writes: Option<Spanned<Writes>>,
    pub(in crate::policy) reads: Option<Spanned<Reads>>,
    pub(in crate::policy) mode: Option<Spanned<Mode>>,
    pub(in crate::policy) scope: Option<Box<str>>,
    pub(in crate::policy) refuse: Vec<Spanned<Category>>,
    pub(in crate::policy) allow: Vec<Spanned<Category>>,
    pub(in crate::policy) unknown_tables: Option<Spanned<UnknownTables>>,
    pub(in crate::policy) declare: Option<Spanned<Declare>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, AsRefStr, EnumIter)]
#[strum(serialize_all = "kebab-case")]
pub(in crate::policy) enum Listing {
    Any,
    Listed,
}

#[derive(Debug)]
pub(in crate::policy) enum Declare {
    For(DeclareFor),
    /// Perhaps none.
    Scopes(Vec<Spanned<Box<str>>>),
}

#[derive(Debug)]
pub(in crate::policy) struct ScopeDraft {
    pub(in crate::policy) name: Spanned<Box<str>>,
    pub(in crate::policy) tables: Vec<Spanned<TablePattern>>,
    pub(in crate::policy) mode: Option<Spanned<Mode>>,
    pub(in crate::policy) bounds: TokenBounds,
    pub(in crate::policy) election: Option<Spanned<Arc<str>>>,
    pub(in crate::policy) holders: Option<Spanned<WhoPattern>>,
}

#[derive(Debug)]
pub(in crate::policy) struct RuleDraft {
    pub(in crate::policy) at: Spanned<()>,
    pub(in crate::policy) name: Option<Box<str>>,
    pub(in crate::policy) who: WhoPattern,
    pub(in crate::policy) pool: Option<PoolMode>,
    pub(in crate::policy) section: Section,
}
