//! The servers of the protected PostgreSQL, and where each listens.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a server of the protected PostgreSQL listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamAddr {
    /// A host name or IP address, resolved anew for each connection.
    Tcp {
        /// Name or address, IPv6 without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// The socket file, `DIR/.s.PGSQL.PORT`.
    Unix(PathBuf),
}

impl UpstreamAddr {
    /// Directory of the socket and port, as libpq and tokio-postgres want a unix socket named.
    pub fn socket_directory(path: &Path) -> Option<(PathBuf, u16)> {
        let port = path
            .file_name()?
            .to_str()?
            .strip_prefix(".s.PGSQL.")?
            .parse()
            .ok()?;
        Some((path.parent()?.to_path_buf(), port))
    }
}

impl fmt::Display for UpstreamAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The servers of one cluster, in the order in which they are named: at least one, none twice. One of them is the
/// primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts(Vec<UpstreamAddr>);

impl Hosts {
    /// Of those that were named.
    pub const fn new(hosts: Vec<UpstreamAddr>) -> Self {
        Self(hosts)
    }

    /// All of them.
    pub fn all(&self) -> &[UpstreamAddr] {
        &self.0
    }

    /// The one, where there is one only.
    pub(crate) fn only(&self) -> Option<&UpstreamAddr> {
        match self.0.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, host) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{host}")?;
        }
        Ok(())
    }
}
