//! Listeners that give their sessions a token, and what decides which of them does.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use pgpalisade_test_servers::kubernetes::Kubernetes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tempfile::TempDir;

use super::plan::LED;
use super::store::RunningStore;

/// Key and name of the election in which the programs beside the proxies stand.
const ELECTION: &str = "/elections/led";

/// Seconds without a renewal after which a Lease is another's.
const LEASE: u64 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// The lease of the scope, for which each proxy campaigns
    Hold,
    /// A key in the store, which is then etcd
    Etcd,
    /// A Lease
    Kubernetes,
    /// A file of each program
    File,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Listener {
    pub proxy: usize,
    /// Through a link.
    pub address: SocketAddr,
    pub direct: SocketAddr,
}

/// The election that the listeners follow. Each proxy stands for its program.
#[derive(Debug)]
pub enum Election {
    None,
    InStore,
    Api(Kubernetes),
    Files(TempDir),
}

impl Election {
    pub fn start(source: Option<Source>) -> Self {
        match source {
            None | Some(Source::Hold) => Self::None,
            Some(Source::Etcd) => Self::InStore,
            Some(Source::Kubernetes) => Self::Api(Kubernetes::start()),
            Some(Source::File) => Self::Files(tempfile::tempdir().expect("a directory")),
        }
    }

    /// Value of `--listener` for a proxy.
    pub fn table(&self, listen: SocketAddr, proxy: usize) -> String {
        let identity = format!("identity = 'p{proxy}'");
        let source = match self {
            Self::None => format!("token = '{LED}=lease'"),
            Self::InStore => format!("token = '{LED}=etcd:{ELECTION}', {identity}"),
            Self::Api(api) => {
                let api = api.address();
                format!(
                    "token = '{LED}=kubernetes:default/{LED}', {identity}, kubernetes = 'http://{api}'"
                )
            }
            Self::Files(_) => format!("token = '{LED}=file:{}'", self.file(proxy).display()),
        };
        format!("{{ listen = '{listen}', {source} }}")
    }

    fn file(&self, proxy: usize) -> PathBuf {
        match self {
            Self::Files(dir) => dir.path().join(format!("p{proxy}")),
            _ => PathBuf::new(),
        }
    }

    /// Elects the program of a proxy. Of files only its own changes: the old leader does not know.
    pub fn elect(&self, proxy: usize, term: u64, store: &RunningStore) {
        let name = format!("p{proxy}_{term}");
        match (self, store) {
            (Self::InStore, RunningStore::Etcd(etcd)) => {
                let key = format!("{ELECTION}/{term:06}");
                let stood = etcd.try_ctl(&["put", &key, &name]);
                // All before it.
                let _left = stood.map(|()| etcd.try_ctl(&["del", &format!("{ELECTION}/"), &key]));
            }
            (Self::Api(api), _) => {
                let spec = json!({ "holderIdentity": name, "leaseTransitions": term, "renewTime": term,
                    "leaseDurationSeconds": LEASE });
                if api
                    .try_change(LED, |lease| lease["spec"] = spec.clone())
                    .is_none()
                {
                    api.create(LED, &spec);
                }
            }
            (Self::Files(_), _) => {
                fs::write(self.file(proxy), term.to_string()).expect("write a number")
            }
            _ => {}
        }
    }

    /// Removes what says who leads.
    pub fn delete(&self, store: &RunningStore) {
        match (self, store) {
            (Self::None, store) => store.lose_lease(LED),
            (Self::InStore, RunningStore::Etcd(etcd)) => {
                let _gone = etcd.try_ctl(&["del", "--prefix", ELECTION]);
            }
            (Self::Api(api), _) => {
                let lease = api.try_change(LED, |_| ());
                lease.into_iter().for_each(|_| api.delete(LED));
            }
            (Self::Files(dir), _) => {
                for file in fs::read_dir(dir).expect("files").flatten() {
                    fs::remove_file(file.path()).expect("remove a number");
                }
            }
            _ => {}
        }
    }

    /// As its leader does. Without a change a Lease runs out.
    pub fn renew(&self) {
        if let Self::Api(api) = self {
            let renew = |lease: &mut serde_json::Value| {
                let last = lease["spec"]["renewTime"].as_u64();
                lease["spec"]["renewTime"] = (last.unwrap_or_default() + 1_000_000).into();
            };
            let _absent = api.try_change(LED, renew);
        }
    }

    /// Lets it answer nobody until [`Self::resume`].
    pub fn pause(&self) {
        if let Self::Api(api) = self {
            api.pause();
        }
    }

    pub fn resume(&self) {
        if let Self::Api(api) = self {
            api.resume();
        }
    }
}
