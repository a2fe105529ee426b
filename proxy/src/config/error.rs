//! Configuration errors with their sources.

use std::fmt;
use std::path::PathBuf;

/// The source of a value, in rising rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueOrigin {
    Default,
    File {
        /// The file as the user named it.
        path: PathBuf,
        /// Line of the key or value, from 1.
        line: usize,
    },
    Environment(String),
    Flag(String),
    Nowhere,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("built-in default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
            Self::Nowhere => f.write_str("configuration"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source_of_value}: {message}")]
pub(crate) struct ConfigError {
    pub source_of_value: ValueOrigin,
    /// What is wrong and what to write. Names the key; never quotes a value that may hold a password.
    pub message: String,
}

/// Everything that is wrong with a configuration, never empty. One line per error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", one_per_line(.0))]
pub(crate) struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigError {
    pub(crate) fn new(source: &ValueOrigin, message: impl Into<String>) -> Self {
        Self {
            source_of_value: source.clone(),
            message: message.into(),
        }
    }
}

fn one_per_line(errors: &[ConfigError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
