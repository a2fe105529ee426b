//! A client's address, as policies, logs and records see it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};

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

impl Serialize for ClientAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
