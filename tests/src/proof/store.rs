//! The store that the proxies of a run share, and what of it can be broken.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use crate::machine::{self, Signal};
use crate::postgres::Postgres;
use crate::proxy::Store;
use crate::shared_store::Hub;
use crate::wire::Endpoint;

use super::cutter::{Link, Network};

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The tests' own: the embedded store behind a unix socket, in the process of the run.
    Hub,
    /// A PostgreSQL of its own, beside the one that is protected.
    Postgres,
}

impl StoreKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Hub, Self::Postgres];

    /// What the command line calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hub => "hub",
            Self::Postgres => "postgres",
        }
    }
}

/// A store that runs.
#[derive(Debug)]
pub enum RunningStore {
    /// See [`StoreKind::Hub`].
    Hub(Hub),
    /// See [`StoreKind::Postgres`].
    Postgres(Postgres),
}

impl RunningStore {
    /// Starts it, with its files in `dir` where it has no directory of its own.
    pub fn start(kind: StoreKind, dir: &Path) -> Self {
        match kind {
            StoreKind::Hub => Self::Hub(Hub::start(dir)),
            StoreKind::Postgres => Self::Postgres(Postgres::start()),
        }
    }

    /// What a proxy is told, and the links that it takes: one for each member.
    pub fn reach(&self, network: &Network, dir: &Path, proxy: usize) -> (Store, Vec<Link>) {
        match self {
            Self::Hub(hub) => {
                let server = Endpoint::Unix(hub.socket().to_path_buf());
                let link = network.unix_link(&dir.join(format!("store-{proxy}")), server);
                (Store::Shared(link.socket()), vec![link])
            }
            Self::Postgres(server) => {
                let (links, ports) = tcp_links(network, [server.port()]);
                let dsn = format!(
                    "postgres:host=127.0.0.1 port={} user=postgres dbname=postgres",
                    ports[0]
                );
                (Store::Url(dsn), links)
            }
        }
    }

    /// How many processes it has that can be broken.
    pub fn members(&self) -> usize {
        match self {
            Self::Hub(_) => 0,
            Self::Postgres(_) => 1,
        }
    }

    /// Stops one (SIGSTOP). Of a PostgreSQL it is the first process, so that new connections wait.
    pub fn pause(&self, member: usize) {
        self.signal(member, Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self, member: usize) {
        self.signal(member, Signal::CONT);
    }

    fn signal(&self, _member: usize, signal: Signal) {
        match self {
            Self::Hub(_) => {}
            Self::Postgres(server) => machine::signal(server.pid(), signal),
        }
    }

    /// Kills one (SIGKILL). What it has stored stays.
    pub fn kill(&mut self, _member: usize) {
        match self {
            Self::Hub(_) => {}
            Self::Postgres(server) => server.crash(),
        }
    }

    /// Starts it again.
    pub fn start_again(&mut self, _member: usize) {
        match self {
            Self::Hub(_) => {}
            Self::Postgres(server) => server.start_again(&[]),
        }
    }
}

fn tcp_links(network: &Network, servers: impl IntoIterator<Item = u16>) -> (Vec<Link>, Vec<u16>) {
    let server = |port| Endpoint::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let links: Vec<Link> = servers
        .into_iter()
        .map(|port| network.link(server(port)))
        .collect();
    let ports = links.iter().map(|link| link.address().port()).collect();
    (links, ports)
}
