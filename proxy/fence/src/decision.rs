//! Decides whether a message may reach PostgreSQL. Only the code in here can make a permit.

mod needs;
mod permit;
mod plan;
mod situation;
mod unread;

pub use needs::{Decision, Unmet};
pub use permit::{Admitted, Basis, Leave, Permit};
pub use plan::Plan;
pub use situation::{Pipeline, Situation};
