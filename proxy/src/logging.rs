//! The log: to standard error, as text on a terminal and as JSON lines otherwise.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFilter, LogFormat};

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The filter is not valid.
    #[error("the log filter is not valid")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// There is a log already.
    #[error("the log is set up already")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

/// Sets up the log of this process. To be called once, by `main`.
///
/// # Errors
/// Where there is a log already.
pub fn init(filter: &LogFilter, format: LogFormat) -> Result<(), LoggingError> {
    let filter = EnvFilter::try_new(filter.as_str())?;
    let terminal = std::io::stderr().is_terminal();
    let json = match format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if json {
        subscriber.json().flatten_event(true).finish().try_init()?;
    } else {
        let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        subscriber.with_ansi(colour).finish().try_init()?;
    }
    Ok(())
}
