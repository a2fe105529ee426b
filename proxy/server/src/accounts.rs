//! Verifiers of those who log in with SCRAM at the proxy: from the users file as it was read last, or from PostgreSQL.

mod auth_query;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use pgpalisade_logins::{Account, Mocks, Shapes, UsersFile, UsersFileError};
use pgpalisade_tls::{Login, Secret, read_secret};

use crate::certificates::ClientTls;
use crate::timers::Timers;
use auth_query::AuthQuery;
pub use auth_query::LookupError;

/// Who authenticates clients, and by what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// PostgreSQL: what both say is relayed.
    Relay,
    /// The proxy, with SCRAM and verifiers from there.
    Scram(VerifierSource),
    /// PostgreSQL, with the password that the proxy has asked for.
    Password,
}

/// Where verifiers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerifierSource {
    /// In a users file.
    File(PathBuf),
    /// In PostgreSQL: SQL that finds the one of a user.
    Query(String),
}

/// How clients log in, with what that takes. Clones share it.
#[derive(Debug, Clone)]
pub enum Logins {
    /// PostgreSQL authenticates them.
    Relayed,
    /// The proxy does, with SCRAM.
    Scram(Arc<Accounts>),
    /// PostgreSQL does, with the password that they send.
    Password,
}

/// Who may log in, by verifier.
#[derive(Debug)]
pub struct Accounts {
    source: Source,
    secret: Secret<[u8; 32]>,
}

#[derive(Debug)]
enum Source {
    File {
        path: PathBuf,
        loaded: RwLock<Arc<UsersFile>>,
        /// Of the verifiers that it had at the start.
        shapes: Shapes,
    },
    Query(Box<AuthQuery>),
}

/// What is wrong with a users file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read, or everybody may: with a verifier passwords can be tried.
    #[error("the users file: {0}")]
    File(#[from] pgpalisade_tls::FileError),
    /// One of its lines.
    #[error("the users file {path}: {error}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: UsersFileError,
    },
}

impl Logins {
    /// Reads the users file, where there is one. PostgreSQL is asked, over a connection like the control connection,
    /// when somebody logs in.
    ///
    /// # Errors
    ///
    /// What is wrong with the file.
    pub fn load(
        auth: &Auth,
        tls: &ClientTls,
        control: &Secret<Login>,
        timers: Timers,
    ) -> Result<Self, FileError> {
        let accounts = match auth {
            Auth::Relay => return Ok(Self::Relayed),
            Auth::Password => return Ok(Self::Password),
            Auth::Scram(VerifierSource::File(path)) => Accounts::of_file(path, tls)?,
            Auth::Scram(VerifierSource::Query(sql)) => {
                let query = AuthQuery::new(control, sql.clone(), timers);
                Accounts::new(Source::Query(Box::new(query)), tls)
            }
        };
        Ok(Self::Scram(Arc::new(accounts)))
    }

    /// Reads the users file again, where there is one. If it is not sound, the old one stays in force.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn reload(&self) -> Result<(), FileError> {
        match self {
            Self::Scram(accounts) => accounts.reload(),
            Self::Relayed | Self::Password => Ok(()),
        }
    }
}

impl Accounts {
    /// Who does not exist is to be shown the same by the next process, and by another one with the same certificate.
    fn new(source: Source, tls: &ClientTls) -> Self {
        let key = match tls {
            ClientTls::On { files, .. } => fs::read(&files.key).ok(),
            ClientTls::Off => None,
        };
        let secret = Secret::new(key.map_or_else(rand::random, Mocks::secret_of));
        Self { source, secret }
    }

    /// Those of a users file.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn of_file(path: &Path, tls: &ClientTls) -> Result<Self, FileError> {
        let file = read(path)?;
        let source = Source::File {
            path: path.to_owned(),
            shapes: file.shapes().clone(),
            loaded: RwLock::new(Arc::new(file)),
        };
        Ok(Self::new(source, tls))
    }

    /// Reads the users file again, where there is one. If it is not sound, the old one stays in force.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn reload(&self) -> Result<(), FileError> {
        let Source::File { path, loaded, .. } = &self.source else {
            return Ok(());
        };
        let file = read(path).inspect_err(|error| {
            tracing::error!(%error, "the users file is not valid: the old one stays in force");
        })?;
        let users = file.count();
        *loaded.write() = Arc::new(file);
        tracing::info!(users, path = %path.display(), "the users file was read again");
        Ok(())
    }

    /// What a user is held against. For one who does not exist, or has no verifier, that is something that looks like
    /// one.
    ///
    /// # Errors
    ///
    /// Where PostgreSQL cannot be asked.
    pub async fn of(&self, user: &[u8]) -> Result<Account, LookupError> {
        // No name that is not a text is in a file, or can be asked for.
        let name = std::str::from_utf8(user).ok();
        let (verifier, shapes) = match &self.source {
            Source::File { loaded, shapes, .. } => {
                let file = Arc::clone(&loaded.read());
                let verifier = name.and_then(|name| file.verifier(name));
                (verifier.cloned(), shapes.clone())
            }
            Source::Query(query) => {
                let verifier = query.verifier(name.unwrap_or_default()).await?;
                (verifier, query.shapes())
            }
        };
        let mock = Mocks::new(*self.secret.expose(), shapes).of(user);
        Ok(verifier.map_or(mock, Account::Known))
    }
}

/// Reads a users file, which others may not.
pub(crate) fn read(path: &Path) -> Result<UsersFile, FileError> {
    UsersFile::parse(&read_secret(path)?).map_err(|error| FileError::Content {
        path: path.to_owned(),
        error,
    })
}
