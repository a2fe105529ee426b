//! Verifiers of those who log in with SCRAM at the proxy: from the users file as it was read last, or from PostgreSQL.

mod auth_query;

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use pgpalisade_logins::{Account, Mocks, Shapes, UsersFile, UsersFileError};
use pgpalisade_tls::{Login, Secret};

use crate::certificates::ClientTls;
use crate::timers::Timers;
use auth_query::AuthQuery;
pub use auth_query::LookupError;

/// A users file may have this many bytes.
const FILE_MAX: u64 = 16 * 1024 * 1024;

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
    },
    Query {
        query: Box<AuthQuery>,
        /// Of the verifiers that it has found.
        seen: RwLock<Shapes>,
    },
}

/// What is wrong with a users file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read the users file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// With a verifier passwords can be tried.
    #[error("everybody may read or write the users file {0}: chmod o-rwx")]
    Open(PathBuf),
    /// It is larger than a users file may be.
    #[error("the users file {0} is larger than {FILE_MAX} bytes")]
    Large(PathBuf),
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
                let query = Box::new(AuthQuery::new(control, sql.clone(), timers));
                let seen = RwLock::default();
                Accounts::new(Source::Query { query, seen }, tls)
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
        let (loaded, path) = (RwLock::new(Arc::new(read(path)?)), path.to_owned());
        Ok(Self::new(Source::File { path, loaded }, tls))
    }

    /// Reads the users file again, where there is one. If it is not sound, the old one stays in force.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn reload(&self) -> Result<(), FileError> {
        let Source::File { path, loaded } = &self.source else {
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
            Source::File { loaded, .. } => {
                let file = Arc::clone(&loaded.read());
                let verifier = name.and_then(|name| file.verifier(name));
                (verifier.cloned(), file.shapes().clone())
            }
            Source::Query { query, seen } => {
                let verifier = query.verifier(name.unwrap_or_default()).await?;
                if let Some(verifier) = &verifier
                    && seen.read().lacks(verifier)
                {
                    seen.write().add(verifier);
                }
                (verifier, seen.read().clone())
            }
        };
        let mock = Mocks::new(*self.secret.expose(), shapes).of(user);
        Ok(verifier.map_or(mock, Account::Known))
    }
}

/// Reads a users file, which others may not.
pub(crate) fn read(path: &Path) -> Result<UsersFile, FileError> {
    let failed = |source| FileError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.permissions().mode() & 0o007 != 0 {
        return Err(FileError::Open(path.to_owned()));
    }
    let mut text = String::new();
    let read = file.take(FILE_MAX + 1).read_to_string(&mut text);
    if read.map_err(failed)? as u64 > FILE_MAX {
        return Err(FileError::Large(path.to_owned()));
    }
    UsersFile::parse(&text).map_err(|error| FileError::Content {
        path: path.to_owned(),
        error,
    })
}
