//! The decision: may this message reach PostgreSQL? Pure, and the only maker of [`Permit`]
//! and of [`Passage`].

mod apply;
mod holding;
mod passage;
mod permit;
mod plan;
mod requirement;
mod rules;
pub mod scope_cell;
mod situation;
mod text_names;

pub use crate::token_value::{SCOPES_MAX, TokenValue, TokenValueError};
pub use holding::{Binding, Footing, Holding, Standing};
pub use passage::Passage;
pub use permit::{Basis, Permit};
pub use plan::{Plan, runs_a_name};
pub use requirement::{Admission, Unguarded};
pub use rules::{Fence, SessionFence};
pub use situation::{Confirmed, Guard, Situation};
