//! What a SQL text does, and what a session needs to be allowed to do it.
//!
//! Pure: no I/O, no clock, no state but the cache that its owner holds. [`classify`] turns a text into a
//! [`Verdict`] with PostgreSQL's own grammar. [`Policy`] turns the [`Effects`] of a statement into a [`Requirement`].
//! [`scan::needs_parse`] lets a session that may read and write anyway skip the parse, and [`VerdictCache`] knows what
//! was parsed before, whatever the constants were.
//!
//! Everything here fails closed: what is not known to be a read is a write.

mod allocation;
mod builtin;
mod cache;
mod classify;
mod effects;
mod form;
mod found;
mod functions;
mod kinds;
mod object_name;
mod policy;
pub mod scan;
mod set_config;
mod settings;
mod unread;
mod verdict;
mod walk;

pub use cache::{CacheStats, VerdictCache};
pub use classify::{
    MAX_PARSED, MAX_PARSED_INLINE, PARSER_STACK, TextEncoding, Weight, classify, is_ascii, weigh,
};
pub use effects::{Category, Class, Effects, Tables, UnknownCategory};
pub use object_name::ObjectName;
pub use policy::{
    Backstop, DEFAULT_SCOPE, Decision, ElectedScope, MayNotDeclare, Mode, Network, Numbers,
    POLICY_BYTES_MAX, POLICY_KEYS, Policy, PolicyErrors, PolicyKey, PreparedTransactions, Reason,
    Remark, Requirement, ScopeId, ScopeSet, SessionPolicy, SessionRule, TokenBounds, Who, nearest,
    type_in_words,
};
pub use verdict::{
    Access, AccessShow, Chain, CommitsInside, Computes, Control, FencingShow, FencingVariable,
    Lifetime, Mistake, Opaque, Statement, SyntaxError, Verdict, WriteReason,
};
