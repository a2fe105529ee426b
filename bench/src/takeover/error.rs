//! Why takeovers could not be measured.

use std::io;
use std::path::PathBuf;

/// Why there are no figures. What the harness itself cannot do (start a server, log in) ends the run with a panic.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "there is no proxy at {}: build it (cargo build -p pgpalisade, with the same profile as this program), or \
         set PGPALISADE_BIN to the binary", path.display()
    )]
    NoProxy { path: PathBuf },
    #[error(
        "{program} was not found in $PATH: install {package}, or leave etcd out (--stores embedded,postgres)"
    )]
    NoEtcd {
        program: &'static str,
        package: &'static str,
    },
    #[error("the takeover was refused:\n{answer}")]
    Refused { answer: String },
    /// The guarantee does not hold, or it was no takeover. Either way a time would say nothing.
    #[error("after the takeover an old session was not ended at its COMMIT:\n{answer}")]
    OldSession { answer: String },
    /// As above.
    #[error("after the takeover {rows} rows of old sessions are there")]
    OldRows { rows: String },
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: io::Error,
    },
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// For `map_err`.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
