//! What can be wrong with a configuration, and where it was said.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value came from. The order of the variants is the order of rank: later ones win.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// Built in.
    Default,
    /// A line of the configuration file, counted from 1.
    File {
        /// The file as the user named it.
        path: PathBuf,
        /// Line of the key or value, from 1.
        line: usize,
    },
    /// An environment variable, by name.
    Environment(String),
    /// A flag of the command line, by name, without the dashes.
    Flag(String),
    /// Nowhere: the error is about a value that is missing.
    Nowhere,
}

impl fmt::Display for Source {
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

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source_of_value}: {message}")]
pub(crate) struct ConfigError {
    /// Where it was said.
    pub source_of_value: Source,
    /// What is wrong and what to write instead. Names the key; never quotes a value that may hold a password.
    pub message: String,
}

/// Everything that is wrong with a configuration, never empty. Displays as one line per error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", one_per_line(.0))]
pub(crate) struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigError {
    /// An error at a place.
    pub(crate) fn new(source: &Source, message: impl Into<String>) -> Self {
        Self {
            source_of_value: source.clone(),
            message: message.into(),
        }
    }

    /// An error about a file as a whole or one of its lines.
    pub(crate) fn in_file(path: &Path, line: usize, message: impl Into<String>) -> Self {
        Self {
            source_of_value: Source::File {
                path: path.to_path_buf(),
                line,
            },
            message: message.into(),
        }
    }
}

fn one_per_line(errors: &[ConfigError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
