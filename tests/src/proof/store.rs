//! The store that the proxies of a run share, and what of it can be broken.

use std::path::Path;

use crate::proxy::Store;
use crate::shared_store::Hub;
use crate::wire::Endpoint;

use super::cutter::{Link, Network};

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The tests' own: the embedded store behind a unix socket, in the process of the run.
    Hub,
}

impl StoreKind {
    /// By the name that the command line has for it.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "hub" => Some(Self::Hub),
            _ => None,
        }
    }
}

/// A store that runs.
#[derive(Debug)]
pub enum RunningStore {
    /// See [`StoreKind::Hub`].
    Hub(Hub),
}

impl RunningStore {
    /// Starts it, with its files in `dir`.
    pub fn start(kind: StoreKind, dir: &Path) -> Self {
        match kind {
            StoreKind::Hub => Self::Hub(Hub::start(dir)),
        }
    }

    /// What a proxy is told, and the links that it takes.
    pub fn reach(&self, network: &Network, dir: &Path, proxy: usize) -> (Store, Vec<Link>) {
        match self {
            Self::Hub(hub) => {
                let server = Endpoint::Unix(hub.socket().to_path_buf());
                let link = network.unix_link(&dir.join(format!("store-{proxy}")), server);
                (Store::Shared(link.socket()), vec![link])
            }
        }
    }

    /// How many processes it has that can be broken.
    pub fn members(&self) -> usize {
        match self {
            Self::Hub(_) => 0,
        }
    }
}
