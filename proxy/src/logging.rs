//! The log: to standard error, as text on a terminal and as JSON lines otherwise.
//!
//! Nobody who logs waits for standard error: lines go to a buffer with a limit, and a thread of its own writes them.
//! What finds no room is counted and told of. Of lines that come in a storm, the first ones are written and the
//! others counted.

mod storm;
mod writer;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::config::{Log, LogFormat};
use storm::Storms;
use writer::Buffer;

pub(crate) use writer::LogGuard;

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoggingError {
    /// The filter is not valid.
    #[error("the log filter is not valid")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// There is a log already.
    #[error("the log is set up already")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
    /// The system gives no thread, or no second handle of standard error.
    #[error("the log cannot be started")]
    Start(#[from] io::Error),
}

/// Sets up the log of this process. To be called once. What waits is written when the guard is dropped.
///
/// # Errors
/// Where there is a log already.
pub(crate) fn init(log: &Log) -> Result<LogGuard, LoggingError> {
    let filter = EnvFilter::try_new(log.filter.as_str())?;
    let stderr = io::stderr();
    let terminal = stderr.is_terminal();
    let json = match log.format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    // A handle of its own: who writes to it holds no lock that a panic's message would wait for.
    let out = File::from(stderr.as_fd().try_clone_to_owned()?);
    let storms = Storms::default();
    let buffer = Buffer::default();
    let layer = fmt::layer().with_writer(buffer.clone());
    let layer = if json {
        layer.json().flatten_event(true).boxed()
    } else {
        // Without colours: no control character of a line is the log's own.
        layer.with_ansi(false).boxed()
    };
    let calmed = registry().with(layer).with(storms.clone());
    calmed.with(filter).try_init()?;
    Ok(buffer.write_to(out, storms)?)
}
