//! Errors of the servers.

use std::io;

/// Reason why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// The server programs are missing.
    #[error(
        "PostgreSQL's server programs (initdb, postgres) were not found in $PG_BIN, where pg_config says, nor in \
         /usr/lib/postgresql: install them (apt-get install postgresql) or set PG_BIN to their directory"
    )]
    NotInstalled,
    /// The caller is root, and PostgreSQL refuses to run as root.
    #[error(
        "PostgreSQL does not run as root, and there is no user \"postgres\" or \"nobody\" to run it as"
    )]
    NoUser,
    /// The system refused an operation.
    #[error("{what}")]
    System {
        /// The operation.
        what: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} failed: {output}")]
    Program {
        /// Name of the program.
        program: String,
        /// The end of its output.
        output: String,
    },
    /// The wait was cancelled.
    #[error("interrupted")]
    Interrupted,
}

/// Converts an error of the system, for an operation.
pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> HarnessError {
    let what = what.into();
    move |source| HarnessError::System { what, source }
}
