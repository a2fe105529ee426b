//! Analysis of SQL texts, and what a session needs to run them.
//!
//! Pure: no I/O, no clock, no state except the cache that its owner holds. [`classify`] analyzes a text with
//! PostgreSQL's own grammar; the result is [`Analysis`]. [`Policy`] turns the [`Effects`] of a statement into a
//! [`Requirement`]. [`scan::needs_parse`] lets a session that may read and write anyway skip the parse.
//! [`VerdictCache`] remembers texts that were parsed before, whatever their constants were.
//!
//! Everything here fails closed: a statement that is not known to be a read is a write.

mod allocation;
mod analysis;
mod builtin;
mod cache;
mod classify;
mod control;
mod effects;
mod form;
mod found;
mod functions;
mod kinds;
mod leftover;
mod object_name;
mod policy;
pub mod scan;
mod set_config;
mod settings;
mod temporary;
mod unread;
mod walk;
mod write_reason;

pub use analysis::{Analysis, Statement};
pub use cache::{CacheStats, VerdictCache};
pub use classify::{
    MAX_PARSED, MAX_PARSED_INLINE, PARSER_STACK, TextEncoding, Weight, classify, is_ascii, weigh,
};
pub use control::{
    Access, AccessShow, Chain, Control, FencingShow, FencingVariable, Lifetime, Mistake,
};
pub use effects::{Category, Class, Computes, Effects, Tables};
pub use form::with_ascii_constants;
pub use functions::reads_large_objects;
pub use leftover::{Assignment, Leftover};
pub use object_name::ObjectName;
pub use policy::{
    DEFAULT_SCOPE, Decision, ElectedScope, MayNotDeclare, Mode, Network, Numbers, POLICY_BYTES_MAX,
    POLICY_KEYS, Policy, PolicyErrors, PolicyKey, PoolMode, PreparedTransactions, Reason, Remark,
    Requirement, ScopeId, ScopeSet, SessionPolicy, SessionRule, TokenBounds, Who, nearest,
    type_in_words,
};
pub use settings::{DEFAULT_READ_ONLY, parse_bool};
pub use write_reason::{Opaque, SyntaxError, WriteReason};
