//! The decision: may this message reach PostgreSQL? Pure, and the only maker of [`Permit`]
//! and of [`ReplicationPermit`].
//!
//! Its answers are errors where something is missing: an [`Unmet`], or a [`Rejection`](rejection::Rejection) with all
//! that the client and the log are told.

mod held_tokens;
pub mod mark_cache;
mod permit;
pub mod readable;
pub mod rejection;
mod replication_permit;
mod requirement;
mod rules;
pub mod statement_text;
pub mod token_value;
pub mod traceparent;

use pgpalisade_wire as wire;

pub use held_tokens::{GrantMode, HeldToken, HeldTokens, Identified, Purpose, Terms, TokenStatus};
pub use permit::{Admitted, Basis, Grounds, Permit};
pub use replication_permit::ReplicationPermit;
pub use requirement::{Decision, Unguarded, Unmet};
pub use rules::{Fence, SessionFence};
pub use token_value::{SCOPES_MAX, TokenValue, TokenValueError};
