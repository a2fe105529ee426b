//! Why a measurement could not be made.

use std::io;
use std::path::PathBuf;

use pgpalisade::demo::private_postgres::PostgresError;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    #[error(
        "pgbench was not found in $PG_BIN or, where that is not set, in $PATH and /usr/lib/postgresql: install it \
         (apt-get install postgresql, or postgresql-contrib on other systems) or set PG_BIN to its directory"
    )]
    NoPgbench,
    #[error(
        "there is no proxy at {}: build it (cargo build -p pgpalisade, with the same profile as this program), or \
         set PGPALISADE_BIN to the binary", path.display()
    )]
    NoProxy { path: PathBuf },
    #[error("the proxy did not start: {output}")]
    ProxyDidNotStart { output: String },
    #[error("pgbench failed ({how}), {doing}: {output}")]
    Pgbench {
        how: String,
        doing: String,
        output: String,
    },
    /// The figures would not be of what the table says.
    #[error(
        "the proxy let a session without a token write: these rounds would not measure the fence"
    )]
    NotFenced,
    #[error("not understood, {what}: {text}")]
    NotUnderstood { what: String, text: String },
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// For `map_err`.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}
