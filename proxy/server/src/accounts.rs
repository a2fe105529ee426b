//! SCRAM verifiers for logins at the proxy, from the users file or from PostgreSQL.

mod auth_query;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use pgpalisade_logins::{Account, Mocks, Shapes, UsersFile};
use pgpalisade_tls::{Login, Secret, SslSettings, read_secret};

use crate::certificates::ClientTls;
use crate::timers::Timers;
use crate::transport::Socket;
use auth_query::AuthQuery;
pub use auth_query::LookupError;

/// Longest name of a role: <https://www.postgresql.org/docs/current/limits.html>
const NAME_BYTES: usize = 63;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    Relay,
    Scram(VerifierSource),
    /// PostgreSQL authenticates clients with the password that the proxy has asked for.
    Password,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerifierSource {
    File(PathBuf),
    Query(String),
}

#[derive(Debug, Clone)]
pub enum Logins {
    Relayed(OwnRoles),
    Scram(Arc<Accounts>),
    Password(OwnRoles),
}

/// Roles as which PostgreSQL may authenticate the proxy, not a client: by the user of its process (`peer`), or by its
/// certificate. So no client gets in as one of them if PostgreSQL asks for nothing.
/// <https://www.postgresql.org/docs/current/auth-peer.html>
#[derive(Debug, Clone, Default)]
pub struct OwnRoles {
    names: Arc<[String]>,
    /// Whether server connections show a certificate.
    shows_certificate: bool,
}

impl OwnRoles {
    /// For server connections with these TLS settings.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = String>, upstream: &SslSettings) -> Self {
        let names = names.into_iter().collect();
        let shows_certificate = upstream.certificate.is_some();
        Self {
            names,
            shows_certificate,
        }
    }

    /// Whether this server may have let in the proxy, not the client that names this user, if it has asked for nothing.
    pub(crate) fn are_meant(&self, user: &[u8], server: &Socket) -> bool {
        let may_be_known = server.is_local() || self.shows_certificate;
        // PostgreSQL cuts a longer name.
        let user = user.get(..NAME_BYTES).unwrap_or(user);
        may_be_known && self.names.iter().any(|own| own.as_bytes() == user)
    }
}

#[derive(Debug)]
pub struct Accounts {
    verifiers: Verifiers,
    secret: Secret<[u8; 32]>,
}

#[derive(Debug)]
enum Verifiers {
    File {
        path: PathBuf,
        loaded: RwLock<Arc<UsersFile>>,
        /// Shapes of the verifiers in the file at the start.
        shapes: Shapes,
    },
    Query(Box<AuthQuery>),
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read, or everybody can read it: verifiers allow guessing passwords.
    #[error("the users file: {0}")]
    File(#[from] pgpalisade_tls::FileError),
    #[error("the users file {path}: {error}")]
    Content { path: PathBuf, error: String },
}

impl Logins {
    /// Reads the users file, if one is configured. PostgreSQL is asked at each login, over a separate connection.
    ///
    /// # Errors
    ///
    /// The users file is not valid.
    pub fn load(
        auth: &Auth,
        tls: &ClientTls,
        control: &Secret<Login>,
        own: OwnRoles,
        timers: Timers,
    ) -> Result<Self, FileError> {
        let accounts = match auth {
            Auth::Relay => return Ok(Self::Relayed(own)),
            Auth::Password => return Ok(Self::Password(own)),
            Auth::Scram(VerifierSource::File(path)) => Accounts::of_file(path, tls)?,
            Auth::Scram(VerifierSource::Query(sql)) => {
                let query = AuthQuery::new(control, sql.clone(), timers);
                Accounts::new(Verifiers::Query(Box::new(query)), tls)
            }
        };
        Ok(Self::Scram(Arc::new(accounts)))
    }

    /// Roles to be checked where PostgreSQL is to authenticate the client.
    pub(crate) const fn own_roles(&self) -> Option<&OwnRoles> {
        match self {
            Self::Relayed(own) | Self::Password(own) => Some(own),
            Self::Scram(_) => None,
        }
    }

    /// Reads the users file again, if one is configured. An invalid one changes nothing.
    pub fn reload(&self) -> Result<(), FileError> {
        match self {
            Self::Scram(accounts) => accounts.reload(),
            Self::Relayed(_) | Self::Password(_) => Ok(()),
        }
    }
}

impl Accounts {
    /// Derives the secret of mock verifiers from the certificate's key, so that every process with this certificate
    /// shows the same mock for a missing user.
    fn new(verifiers: Verifiers, tls: &ClientTls) -> Self {
        let key = match tls {
            ClientTls::On { files, .. } => fs::read(&files.key).ok(),
            ClientTls::Off => None,
        };
        let secret = Secret::new(key.map_or_else(rand::random, Mocks::secret_of));
        Self { verifiers, secret }
    }

    pub fn of_file(path: &Path, tls: &ClientTls) -> Result<Self, FileError> {
        let file = read(path)?;
        let verifiers = Verifiers::File {
            path: path.to_owned(),
            shapes: file.shapes().clone(),
            loaded: RwLock::new(Arc::new(file)),
        };
        Ok(Self::new(verifiers, tls))
    }

    /// Reads the users file again, if one is configured. An invalid one changes nothing.
    pub fn reload(&self) -> Result<(), FileError> {
        let Verifiers::File { path, loaded, .. } = &self.verifiers else {
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

    /// The account for a user, or a mock that looks like one.
    ///
    /// # Errors
    ///
    /// PostgreSQL cannot be asked.
    pub async fn of(&self, user: &[u8]) -> Result<Account, LookupError> {
        // A name that is not UTF-8 is in no file or query.
        let name = std::str::from_utf8(user).ok();
        let (verifier, shapes) = match &self.verifiers {
            Verifiers::File { loaded, shapes, .. } => {
                let file = Arc::clone(&loaded.read());
                let verifier = name.and_then(|name| file.verifier(name));
                (verifier.cloned(), shapes.clone())
            }
            Verifiers::Query(query) => {
                let verifier = query.verifier(name.unwrap_or_default()).await?;
                (verifier, query.shapes())
            }
        };
        let mock = Mocks::new(*self.secret.expose(), shapes).of(user);
        Ok(verifier.map_or(mock, Account::Known))
    }
}

pub(crate) fn read(path: &Path) -> Result<UsersFile, FileError> {
    UsersFile::parse(&read_secret(path)?).map_err(|error| FileError::Content {
        path: path.to_owned(),
        error,
    })
}
