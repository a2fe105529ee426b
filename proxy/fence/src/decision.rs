//! Decides whether a message may reach PostgreSQL. Only the code in here can make a permit.

mod needs;
mod permit;
mod plan;
mod situation;
mod unread;

pub use needs::{Decision, Unmet};
pub use permit::{Admitted, Basis, Permit};
pub use plan::{changes_names, runs_a_name, takes};
pub use situation::{Confirmed, Pipeline, Situation, Wrote};
pub use unread::CopyIn;
