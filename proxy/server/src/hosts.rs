//! Addresses of the protected PostgreSQL servers.

use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamAddr {
    /// A host name or IP address, resolved for each connection.
    Tcp { host: String, port: u16 },
    /// The socket file, `DIR/.s.PGSQL.PORT`.
    Unix(PathBuf),
}

impl UpstreamAddr {
    /// Directory and port of a unix socket, as libpq and tokio-postgres name it.
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

/// The servers of one cluster, in the configured order: at least one, none twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts(Vec<UpstreamAddr>);

impl Hosts {
    pub const fn new(hosts: Vec<UpstreamAddr>) -> Self {
        Self(hosts)
    }

    pub fn all(&self) -> &[UpstreamAddr] {
        &self.0
    }

    /// The server, if there is only one.
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
