//! The decision: may this message reach PostgreSQL? Pure, and the only maker of [`Permit`]
//! and of [`Passage`].
//!
//! Its answers are errors where something is missing: an [`Unmet`], or a [`Rejection`](rejection::Rejection) with all
//! that the client and the log are told.

mod holding;
mod passage;
mod permit;
pub mod readable;
pub mod rejection;
mod requirement;
mod rules;
pub mod scope_cell;
pub mod token_value;

use pgpalisade_wire as wire;

pub use holding::{Binding, Footing, Holding, Identified, Purpose, Standing};
pub use passage::Passage;
pub use permit::{Admitted, Basis, Grounds, Permit};
pub use requirement::{Decision, Unguarded, Unmet};
pub use rules::{Fence, SessionFence};
pub use token_value::{SCOPES_MAX, TokenValue, TokenValueError};
