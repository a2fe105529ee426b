//! Errors of the benchmark, by who is at fault.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{Scope, Token};
use pgpalisade_tls::{FileError, words};

use super::target::Path;
use crate::server::hosts::UpstreamAddr;

/// Each says what to do next.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum BenchError {
    /// An invalid connection string. The error does not quote it: it may hold a password.
    #[error("{} {reason}", path.flag())]
    Dsn { path: Path, reason: String },
    #[error("cannot log in at the {path} address {address}: {said}")]
    Login {
        path: Path,
        address: UpstreamAddr,
        said: Said,
    },
    #[error("the {path} address {address} did not answer within {within:?}")]
    Silent {
        path: Path,
        address: UpstreamAddr,
        within: Duration,
    },
    /// `--proxied` leads to PostgreSQL itself, or to another proxy.
    #[error(
        "the server at the proxied address {0} is not pgpalisade: it does not know SHOW fencing.status; give the \
         proxy's address"
    )]
    NoProxy(UpstreamAddr),
    /// `--direct` leads to a pgpalisade.
    #[error("the direct address {0} also leads through pgpalisade: give PostgreSQL's own address")]
    DirectIsProxied(UpstreamAddr),
    #[error(
        "the two addresses lead to different servers: directly {direct}, through the proxy {proxied}; give two paths \
         to one server"
    )]
    OtherServer { direct: String, proxied: String },
    /// The benchmark is no leader: it does not raise marks.
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
    /// Would be a takeover too, in a scope without a mark.
    #[error(
        "no token has been declared in scope \"{0}\" yet, and the benchmark must not be its first leader; declare one \
         through the proxy: psql -c \"SET fencing.token = '{0}=1'\""
    )]
    NoMark(Scope),
    /// The session may not create its table.
    #[error(
        "the proxied session may not write: {said}; the benchmark needs the current token, which it then shares with \
         the leader: {hint}"
    )]
    NoToken { said: Said, hint: String },
    /// A statement failed, or the server ended its session.
    #[error("the {path} path failed: {said}")]
    Failed { path: Path, said: Said },
    #[error("the {path} path did not answer within {within:?}")]
    Stuck { path: Path, within: Duration },
    #[error("interrupted before the first round was complete")]
    Interrupted,
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: Arc<io::Error>,
    },
}

impl BenchError {
    pub(crate) fn system(what: &'static str, source: io::Error) -> Self {
        let source = Arc::new(source);
        Self::System { what, source }
    }

    pub(super) fn failed(path: Path, error: &tokio_postgres::Error) -> Self {
        let said = Said::by(error);
        Self::Failed { path, said }
    }

    pub(crate) const fn is_usage(&self) -> bool {
        matches!(self, Self::Dsn { .. })
    }
}

/// A token as `--token` takes it.
pub(super) fn current(scope: &Scope, mark: &Token) -> String {
    if *scope == Scope::default() {
        mark.to_string()
    } else {
        format!("{scope}={mark}")
    }
}

/// The server's message, in one line without control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    /// SQLSTATE; empty if the error is not the server's.
    pub(super) code: String,
    text: String,
}

impl Said {
    pub(super) fn by(error: &tokio_postgres::Error) -> Self {
        let (code, text) = match error.as_db_error() {
            Some(db) => {
                let code = db.code().code().to_owned();
                // The proxy's own messages begin with the code.
                let text = if db.message().starts_with(&code) {
                    format!("{}: {}", db.severity(), db.message())
                } else {
                    format!("{}: {} ({code})", db.severity(), db.message())
                };
                (code, text)
            }
            None => (String::new(), words(error)),
        };
        let visible = |c: char| if c.is_control() { ' ' } else { c };
        let text = text.chars().map(visible).collect();
        Self { code, text }
    }

    /// An error before the server was asked.
    pub(super) fn of_this_side(error: &FileError) -> Self {
        Self {
            code: String::new(),
            text: error.to_string(),
        }
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}
