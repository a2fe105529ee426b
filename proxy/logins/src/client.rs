//! Who a client is, as policies, logs and records see it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Address of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAddr {
    Tcp(SocketAddr),
    /// A unix socket on this machine. As for `pg_hba.conf`, such a client is in no network.
    Local,
}

impl ClientAddr {
    pub const fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Local => None,
        }
    }

    /// The host, as PostgreSQL's messages name it.
    pub fn host(self) -> String {
        self.ip()
            .map_or_else(|| self.to_string(), |ip| ip.to_string())
    }
}

impl fmt::Display for ClientAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            // PostgreSQL's own word.
            Self::Local => f.write_str("[local]"),
        }
    }
}

/// The names and the address of a client.
#[derive(Debug, Clone)]
pub struct SessionLabel {
    /// User of the startup packet.
    pub user: String,
    /// Database of the startup packet.
    pub database: String,
    /// application_name, if the client gave one.
    pub application_name: Option<String>,
    /// Common name of the client's certificate, if it has shown one.
    pub common_name: Option<String>,
    /// Address of the client.
    pub client_addr: ClientAddr,
    /// Process id of the backend, set once PostgreSQL has authenticated the client.
    pub backend_pid: Option<i32>,
}

impl SessionLabel {
    /// Whether the user is authenticated. Before that a client can give any name.
    pub const fn is_authenticated(&self) -> bool {
        self.backend_pid.is_some()
    }
}
