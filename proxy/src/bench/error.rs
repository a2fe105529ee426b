//! Why there is no measurement, by who is at fault.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{Scope, Token};
use pgpalisade_tls::{FileError, words};

use super::target::Path;
use crate::server::hosts::UpstreamAddr;

/// Why there is no measurement. Each says what to do next.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum BenchError {
    /// A connection string that is none. It is not quoted: it may hold a password.
    #[error("{} {reason}", path.flag())]
    Dsn { path: Path, reason: String },
    /// No session.
    #[error("cannot log in at the {path} address {address}: {said}")]
    Login {
        path: Path,
        address: UpstreamAddr,
        said: Said,
    },
    /// Nobody answers.
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
    /// They would be two servers that are compared.
    #[error(
        "the two addresses lead to different servers: directly {direct}, through the proxy {proxied}; give two paths \
         to one server"
    )]
    OtherServer { direct: String, proxied: String },
    /// The bench is no leader: it does not raise marks.
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
    /// The same, where no leader has been yet.
    #[error(
        "no token has been declared in scope \"{0}\" yet, and the benchmark must not be its first leader; declare one \
         through the proxy: psql -c \"SET fencing.token = '{0}=1'\""
    )]
    NoMark(Scope),
    /// The session may not make its table.
    #[error(
        "the proxied session may not write: {said}; the benchmark needs the current token, which it then shares with \
         the leader: {hint}"
    )]
    NoToken { said: Said, hint: String },
    /// A statement failed, or its session was ended.
    #[error("the {path} path failed: {said}")]
    Failed { path: Path, said: Said },
    /// A statement was not answered.
    #[error("the {path} path did not answer within {within:?}")]
    Stuck { path: Path, within: Duration },
    /// Ctrl-C, and nothing to show.
    #[error("interrupted before the first round was complete")]
    Interrupted,
    /// The operating system refused something.
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

    /// The command line is at fault.
    pub(crate) const fn is_usage(&self) -> bool {
        matches!(self, Self::Dsn { .. })
    }
}

/// A token as the flag takes it.
pub(super) fn current(scope: &Scope, mark: &Token) -> String {
    if *scope == Scope::default() {
        mark.to_string()
    } else {
        format!("{scope}={mark}")
    }
}

/// What the server said, in one line without control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    /// SQLSTATE; empty where it was no server that said it.
    pub(super) code: String,
    text: String,
}

impl Said {
    pub(super) fn by(error: &tokio_postgres::Error) -> Self {
        let (code, text) = match error.as_db_error() {
            Some(db) => {
                let code = db.code().code().to_owned();
                // The proxy's own messages begin with it.
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

    /// The server was not asked.
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
