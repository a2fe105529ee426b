//! Errors of the servers.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    #[error(
        "PostgreSQL's server programs (initdb, postgres) were not found in $PG_BIN, where pg_config says, nor in \
         /usr/lib/postgresql: install them (apt-get install postgresql) or set PG_BIN to their directory"
    )]
    NotInstalled,
    #[error(
        "PostgreSQL does not run as root, and there is no user \"postgres\" or \"nobody\" to run it as"
    )]
    NoUser,
    #[error("{what}")]
    System {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("{program} failed: {output}")]
    Program { program: String, output: String },
    #[error("interrupted")]
    Interrupted,
}

pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> HarnessError {
    let what = what.into();
    move |source| HarnessError::System { what, source }
}
