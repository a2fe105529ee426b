//! Listeners that give their sessions a token, and where they get it from.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::plan::LED;

/// What decides which proxy leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The lease of the scope, for which each proxy campaigns.
    Hold,
}

impl Source {
    pub const ALL: [Self; 1] = [Self::Hold];

    pub fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
        }
    }

    /// # Errors
    ///
    /// The known names.
    pub fn parse(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|source| source.name() == name);
        known.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.map(Self::name).to_vec();
            format!("there is no source {name}; there is: {}", names.join(", "))
        })
    }

    /// Value of `--listener` for a proxy.
    pub fn table(self, listen: SocketAddr) -> String {
        let token = match self {
            Self::Hold => "lease",
        };
        format!("{{ listen = \"{listen}\", token = \"{LED}={token}\" }}")
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Listener {
    pub proxy: usize,
    /// Through a link.
    pub address: SocketAddr,
    pub direct: SocketAddr,
}
