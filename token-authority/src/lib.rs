//! Fencing tokens, and the authority that keeps their marks.
//!
//! This crate knows tokens, scopes and server sessions, and nothing of the proxy. `docs/index.md` explains the words,
//! "Why it holds" in `docs/guarantee.md` the protocol of an [`Authority`].
#![warn(missing_docs)]

mod authority;
mod claim;
mod cluster;
mod contents;
mod election;
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(not(feature = "etcd"))]
#[path = "etcd/absent.rs"]
pub mod etcd;
mod lease;
mod leases;
mod open_error;
pub mod owned;
pub mod postgres;
mod rank;
mod record;
mod repair;
pub mod rule;
mod scope;
mod takeovers;
mod token;
mod token_value;
mod watchers;

pub use authority::{
    Answer, Authority, AuthorityError, AuthorityId, Change, Declaration, DeclareOutcome, Declared,
    Drained, Enrolled, Following, IfStale, Watch,
};
pub use claim::{Claim, TakeId};
pub use cluster::Cluster;
pub use contents::Contents;
pub use election::{Election, Mandate, Standing};
pub use embedded::Embedded;
pub use etcd::Etcd;
pub use lease::{LEASE_IS_ANOTHERS, LeaseId, LeaseStep, LeaseTime, Leased};
pub use open_error::OpenError;
pub use postgres::Postgres;
pub use rank::{Incarnation, NoIncarnation, Rank};
pub use record::{Backend, Mark, Registered, now_us, utc};
pub use repair::{Repair, RepairRequest, Repaired};
pub use scope::{Scope, ScopeError};
pub use takeovers::{TakeoverEnd, TakeoverRecord, TakeoverWork};
pub use token::{Token, TokenError};
pub use token_value::{SCOPES_MAX, TokenValue, TokenValueError};
