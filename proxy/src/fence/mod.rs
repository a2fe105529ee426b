//! The decision: may this message reach PostgreSQL? Pure, and the only maker of [`Permit`]
//! and of [`Passage`].

mod holding;
mod passage;
mod permit;
mod requirement;
mod rules;
pub mod scope_cell;

pub use crate::token_value::{SCOPES_MAX, TokenValue, TokenValueError};
pub use holding::{Binding, Footing, Holding, Identified, Purpose, Standing};
pub use passage::Passage;
pub use permit::{Admitted, Basis, Grounds, Permit};
pub use requirement::{Decision, Unguarded, Unmet};
pub use rules::{Fence, SessionFence};
