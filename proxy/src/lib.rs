//! Placeholder.
pub mod cli;
pub mod config;
pub mod demo;
pub mod logging;
pub mod rejection_log;
pub mod server;
