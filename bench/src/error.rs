//! Why a measurement could not be made.

use std::io;
use std::path::PathBuf;

use pgpalisade::demo::private_postgres::PostgresError;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No PostgreSQL.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// No pgbench.
    #[error(
        "pgbench was not found in $PG_BIN or, where that is not set, in $PATH and /usr/lib/postgresql: install it \
         (apt-get install postgresql, or postgresql-contrib on other systems) or set PG_BIN to its directory"
    )]
    NoPgbench,
    /// A binary of the workspace is not there.
    #[error(
        "there is no {}: build it (cargo build --bins, with the same profile as this program), or, for the proxy, set \
         PGPALISADE_BIN to the binary", path.display()
    )]
    NotBuilt {
        /// Where it should be.
        path: PathBuf,
    },
    /// A peer is not installed.
    #[error("{program} was not found in $PATH: apt-get install {package}")]
    NoPeer {
        /// What was looked for.
        program: &'static str,
        /// Debian's package of it.
        package: &'static str,
    },
    /// A proxy ended, or took no connection in time.
    #[error("{what} did not start: {output}")]
    DidNotStart {
        /// Which.
        what: &'static str,
        /// What it said.
        output: String,
    },
    /// pgbench failed.
    #[error("pgbench failed ({how}), {doing}: {output}")]
    Pgbench {
        /// Its status, or that it does not end.
        how: String,
        /// Its arguments.
        doing: String,
        /// What it wrote to its standard error.
        output: String,
    },
    /// A statement of ours failed.
    #[error("PostgreSQL refuses, {doing}: {source}")]
    Sql {
        /// The statement.
        doing: String,
        /// Why.
        source: tokio_postgres::Error,
    },
    /// The figures would not be of what the table says.
    #[error("{0}: these rounds would not measure the fence")]
    NotFenced(String),
    /// A round did not go as it must.
    #[error("{0}")]
    Round(String),
    /// Something that was read is not as expected.
    #[error("not understood, {what}: {text}")]
    NotUnderstood {
        /// What was read.
        what: String,
        /// The text.
        text: String,
    },
    /// A file or a process could not be used.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why not.
        source: io::Error,
    },
    /// Told to stop.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// For `map_err`.
    pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}
