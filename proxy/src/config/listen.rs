//! Addresses that clients and operators connect to.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::address::{MAX_SOCKET_PATH, parse_listen};

/// The port in a socket's name where none is given: that of the address in the default of `listen`.
const DEFAULT_PORT: u16 = 6432;

/// An address that clients connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenAddr {
    /// Port 0 lets the system choose.
    Tcp(SocketAddr),
    /// The socket file, `DIR/.s.PGSQL.PORT`.
    Unix(PathBuf),
}

impl ListenAddr {
    /// Parses `IP:PORT`, `DIR` or `DIR:PORT`. The error says what to write.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_with_default(text, DEFAULT_PORT)
    }

    /// The same, for a service whose port is another one.
    pub(super) fn parse_with_default(text: &str, default_port: u16) -> Result<Self, String> {
        let text = text.trim();
        if !text.starts_with('/') {
            return parse_listen(text).map(Self::Tcp);
        }
        let (directory, port) = match text.rsplit_once(':') {
            None => (text, default_port),
            Some((directory, port)) => match port.parse() {
                Ok(port @ 1..) => (directory, port),
                _ => return Err(format!("{text:?} has no valid port: write 1 to 65535")),
            },
        };
        let path = Path::new(directory).join(format!(".s.PGSQL.{port}"));
        let len = path.as_os_str().len();
        match len > MAX_SOCKET_PATH {
            false => Ok(Self::Unix(path)),
            true => Err(format!(
                "the socket's path {} has {len} bytes, and a socket's may have {MAX_SOCKET_PATH}",
                path.display()
            )),
        }
    }

    /// Whether it can be listened on only once.
    pub(super) const fn is_fixed(&self) -> bool {
        !matches!(self, Self::Tcp(address) if address.port() == 0)
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_sockets() {
        let shown = |text: &str| ListenAddr::parse(text).map(|address| address.to_string());
        assert_eq!(shown("/run/x").unwrap(), "/run/x/.s.PGSQL.6432");
        assert_eq!(shown("/run/x/:5432").unwrap(), "/run/x/.s.PGSQL.5432");
        assert_eq!(shown("[::1]:7").unwrap(), "[::1]:7");
        for wrong in [
            "/run/x:0",
            "/run/x:port",
            "/run/x:",
            "/run/x:65536",
            "run/x",
        ] {
            assert!(shown(wrong).is_err(), "{wrong}");
        }
        assert!(shown(&format!("/{}", "x".repeat(92))).is_ok());
        let error = shown(&format!("/{}", "x".repeat(93))).unwrap_err();
        assert!(error.contains("has 108 bytes"), "{error}");
    }

    #[test]
    fn what_can_be_listened_on_only_once() {
        let parse = |text| ListenAddr::parse(text).unwrap();
        assert_eq!(parse("/run"), parse("/run/:6432"));
        assert!(parse("/run").is_fixed() && parse("127.0.0.1:1").is_fixed());
        assert!(!parse("127.0.0.1:0").is_fixed());
    }
}
