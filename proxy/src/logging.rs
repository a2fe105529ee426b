//! The log: to standard error, as text on a terminal and as JSON lines otherwise.
//!
//! Lines go to a bounded queue, and a separate thread writes them, so no caller waits. Lines without room are
//! counted and reported.

mod storm;
mod writer;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::config::Log;
use storm::Storms;

pub(crate) use writer::LogGuard;

/// Sets up the log of this process, once. Dropping the guard writes what waits.
///
/// # Errors
/// If the log is already set up.
pub(crate) fn init(log: &Log) -> io::Result<LogGuard> {
    let stderr = io::stderr();
    let terminal = stderr.is_terminal();
    // A separate handle, because the lock of the shared one would delay a panic's message.
    let out = File::from(stderr.as_fd().try_clone_to_owned()?);
    let storms = Storms::default();
    let (buffer, guard) = writer::start(out, storms.clone())?;
    let layer = fmt::layer().with_writer(move || buffer.clone());
    let layer = if log.json.unwrap_or(!terminal) {
        layer.json().flatten_event(true).boxed()
    } else {
        // Without colours: control characters of a line come from others.
        layer.with_ansi(false).boxed()
    };
    let calmed = registry().with(layer).with(storms);
    let started = calmed.with(log.filter.clone()).try_init();
    started.map_err(io::Error::other)?;
    Ok(guard)
}
