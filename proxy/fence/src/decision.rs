//! May this message reach PostgreSQL? Everything that can make a permit is in here.

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
