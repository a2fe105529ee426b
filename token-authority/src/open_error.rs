//! Why a store cannot be opened.

use std::io;
use std::path::PathBuf;

/// Reason why a store cannot be opened, with what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open: an embedded store whose proxy runs.
    #[error("{0}")]
    InUse(String),
    /// A file or directory of an embedded store cannot be created, read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Nothing is there: a wrong address, or a store that is lost.
    #[error(
        "there is no store at {0}, and none was created: make sure that this is the right place"
    )]
    Missing(String),
    /// Anything else.
    #[error("{0}")]
    Unusable(String),
}
