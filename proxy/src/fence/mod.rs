//! The fence: what decides whether a message may pass.
pub mod scope_cell;
