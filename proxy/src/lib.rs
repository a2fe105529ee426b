//! Placeholder.
pub mod config;
pub mod rejection_log;
