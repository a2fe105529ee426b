//! Errors of the benchmark.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{Scope, Token};
use pgpalisade_tls::words;

use crate::target::Path;

#[derive(Debug, Clone, thiserror::Error)]
pub enum BenchError {
    #[error("--{0} {1}")]
    Dsn(Path, String),
    #[error("cannot log in at the {0} address {1}: {2}")]
    Login(Path, String, String),
    #[error("the {0} address {1} did not answer within {2:?}")]
    Silent(Path, String, Duration),
    /// `--proxied` leads to PostgreSQL itself, or to another proxy.
    #[error(
        "the server at the proxied address {0} is not pgpalisade: it does not know SHOW fencing.status; give the \
         proxy's address"
    )]
    NoProxy(String),
    #[error("the direct address {0} also leads through pgpalisade: give PostgreSQL's own address")]
    DirectIsProxied(String),
    #[error(
        "the two addresses lead to different servers: directly {0}, through the proxy {1}; give two paths to \
         one server"
    )]
    OtherServer(String, String),
    /// The benchmark never raises marks.
    #[error(
        "token {token} would be a takeover: the mark of scope \"{scope}\" is {mark}, and the benchmark must not \
         end anybody's sessions; give the current token: --token {}",
        current(scope, mark)
    )]
    Takeover {
        scope: Scope,
        token: Token,
        mark: Token,
    },
    /// A takeover too, in a scope without a mark.
    #[error(
        "no token has been declared in scope \"{0}\" yet, and the benchmark must not be its first leader; declare one \
         through the proxy: psql -c \"SET fencing.token = '{0}=1'\""
    )]
    NoMark(Scope),
    #[error(
        "the proxied session may not write: {0}; the benchmark needs the current token, which it then shares with the \
         leader: add --token with what SHOW fencing.mark says through the proxy"
    )]
    NoToken(String),
    #[error("the {0} path failed: {1}")]
    Failed(Path, String),
    #[error("the {0} path did not answer within {1:?}")]
    Stuck(Path, Duration),
    #[error("interrupted before the first round was complete")]
    Interrupted,
    #[error("{0}: {1}")]
    System(&'static str, #[source] Arc<io::Error>),
}

impl BenchError {
    #[must_use]
    pub fn system(what: &'static str, error: io::Error) -> Self {
        Self::System(what, Arc::new(error))
    }

    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Dsn(..))
    }
}

/// In the form of `--token`.
fn current(scope: &Scope, mark: &Token) -> String {
    if *scope == Scope::default() {
        mark.to_string()
    } else {
        format!("{scope}={mark}")
    }
}

/// In one line without control characters, with the code.
pub(crate) fn said(error: &tokio_postgres::Error) -> String {
    let text = error.as_db_error().map_or_else(
        || words(error),
        |db| match db.code().code() {
            // The proxy's own messages begin with the code.
            code if db.message().starts_with(code) => {
                format!("{}: {}", db.severity(), db.message())
            }
            code => format!("{}: {} ({code})", db.severity(), db.message()),
        },
    );
    text.replace(char::is_control, " ")
}
