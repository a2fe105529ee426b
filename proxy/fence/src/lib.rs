//! Decides whether a message may reach PostgreSQL. Pure, and the only maker of [`Permit`] and [`ReplicationPermit`].
//!
//! If something is missing, the answer is an error: an [`Unmet`], or a [`Rejection`](rejection::Rejection) with all
//! that the client and the log are told.

mod decision;
mod guard;
mod held_tokens;
pub mod mark_cache;
mod prepared;
pub mod readable;
pub mod rejection;
mod replication_permit;
mod rules;
mod source;
mod state;
pub mod statement_text;
mod text_names;
pub mod traceparent;

use pgpalisade_authority::SCOPES_MAX;
use pgpalisade_wire as wire;

pub use decision::{Admitted, Basis, Decision, Leave, Permit, Pipeline, Plan, Situation, Unmet};
pub use guard::{Guard, TransactionAccess, Unguarded, end_of_failed, ends_transaction};
pub use held_tokens::{GrantMode, HeldToken, HeldTokens, Identified, Purpose, Terms, TokenStatus};
pub use pgpalisade_authority::{TokenValue, TokenValueError};
pub use prepared::{Classified, Name, NameSpace, PreparedNames, PreparedText};
pub use replication_permit::ReplicationPermit;
pub use rules::{Fence, SessionFence};
pub use source::{Described, Source};
pub use state::{ServerText, SessionState, Taken};
