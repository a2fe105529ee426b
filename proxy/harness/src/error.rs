//! Why a server is not there.

use std::io;

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// No server programs.
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
    /// The system refused something.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} failed: {output}")]
    Program {
        /// Which.
        program: String,
        /// The end of what it printed.
        output: String,
    },
    /// Told to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Says what the system refused.
pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> HarnessError {
    let what = what.into();
    move |source| HarnessError::System { what, source }
}
