//! Where a client is, as policies, logs and records see it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};

/// Where a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAddr {
    /// In the network.
    Tcp(SocketAddr),
    /// On this machine, through a socket of the file system: in no network, as for `pg_hba.conf`.
    Local,
}

impl ClientAddr {
    /// Its address, where it has one.
    pub const fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Local => None,
        }
    }

    /// Its host, as PostgreSQL's messages name it.
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

impl Serialize for ClientAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
