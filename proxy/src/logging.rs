//! The log: to standard error, as text on a terminal and as JSON lines otherwise.
//!
//! No caller waits for standard error: lines go to a bounded buffer, and a separate thread writes them. Lines without
//! room are counted and reported. Of a storm of similar lines, the first ones are written and the others counted.

mod storm;
mod writer;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::config::{Log, LogFormat};
use storm::Storms;
use writer::Buffer;

pub(crate) use writer::LogGuard;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LoggingError {
    #[error("the log is set up already")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
    /// No thread, or no second handle of standard error.
    #[error("the log cannot be started")]
    Start(#[from] io::Error),
}

/// Sets up the log of this process, once. Dropping the guard writes what waits.
///
/// # Errors
/// If the log is already set up.
pub(crate) fn init(log: &Log) -> Result<LogGuard, LoggingError> {
    let stderr = io::stderr();
    let terminal = stderr.is_terminal();
    let json = match log.format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    // A separate handle, because the lock of the shared one would delay a panic's message.
    let out = File::from(stderr.as_fd().try_clone_to_owned()?);
    let storms = Storms::default();
    let buffer = Buffer::default();
    let layer = fmt::layer().with_writer(buffer.clone());
    let layer = if json {
        layer.json().flatten_event(true).boxed()
    } else {
        // Without colours: a line's control characters are never the log's own.
        layer.with_ansi(false).boxed()
    };
    let calmed = registry().with(layer).with(storms.clone());
    calmed.with(log.filter.clone()).try_init()?;
    Ok(buffer.write_to(out, storms)?)
}
