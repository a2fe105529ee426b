//! The store that the proxies of a run share, and what of it can be broken.

use std::net::{Ipv4Addr, SocketAddr};

use crate::etcd::Etcd;
use crate::machine::{self, Signal};
use crate::postgres::Postgres;
use crate::proxy::Store;
use crate::wire::Endpoint;

use super::cutter::{Link, Network};

/// As many as keep an answer while one is away, and none while two are.
const ETCD_MEMBERS: usize = 3;

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// In the one proxy itself.
    Embedded,
    /// A PostgreSQL of its own, beside the one that is protected.
    Postgres,
    /// An etcd cluster of three members.
    Etcd,
}

impl StoreKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Embedded, Self::Postgres, Self::Etcd];

    /// How many proxies may use it at once.
    pub fn proxies(self) -> Proxies {
        match self {
            Self::Embedded => Proxies::One,
            Self::Postgres | Self::Etcd => Proxies::Many,
        }
    }

    /// What the command line calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Postgres => "postgres",
            Self::Etcd => "etcd",
        }
    }
}

/// How many proxies use a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxies {
    /// It is in use as long as the proxy runs.
    One,
    /// They share it, with the commands of operators.
    Many,
}

/// A store that runs.
#[derive(Debug)]
pub enum RunningStore {
    /// See [`StoreKind::Embedded`].
    Embedded,
    /// See [`StoreKind::Postgres`].
    Postgres(Postgres),
    /// See [`StoreKind::Etcd`].
    Etcd(Etcd),
}

impl RunningStore {
    /// Starts it.
    pub fn start(kind: StoreKind) -> Self {
        match kind {
            StoreKind::Embedded => Self::Embedded,
            StoreKind::Postgres => Self::Postgres(Postgres::start()),
            StoreKind::Etcd => Self::Etcd(Etcd::start(ETCD_MEMBERS)),
        }
    }

    /// What a proxy is told, and the links that it takes: one for each member.
    pub fn reach(&self, network: &Network) -> (Store, Vec<Link>) {
        match self {
            Self::Embedded => (Store::Embedded, Vec::new()),
            Self::Postgres(server) => {
                let (links, ports) = tcp_links(network, [server.port()]);
                let dsn = format!(
                    "postgres:host=127.0.0.1 port={} user=postgres dbname=postgres",
                    ports[0]
                );
                (Store::Url(dsn), links)
            }
            Self::Etcd(etcd) => {
                let (links, ports) = tcp_links(network, etcd.urls().iter().map(|url| port_of(url)));
                let urls: Vec<String> = ports
                    .iter()
                    .map(|port| format!("http://127.0.0.1:{port}"))
                    .collect();
                (Store::Url(format!("etcd:{}", urls.join(","))), links)
            }
        }
    }

    /// What a proxy is told that reaches it without a link.
    pub fn direct(&self) -> Store {
        match self {
            Self::Embedded => Store::Embedded,
            Self::Postgres(server) => {
                let port = server.port();
                let dsn =
                    format!("postgres:host=127.0.0.1 port={port} user=postgres dbname=postgres");
                Store::Url(dsn)
            }
            Self::Etcd(etcd) => Store::Url(etcd.authority()),
        }
    }

    /// Keeps a copy of what is stored now, in the place of an earlier one. etcd forgets its history behind it.
    pub fn back_up(&mut self) {
        match self {
            Self::Embedded => {}
            Self::Postgres(server) => server.back_up(),
            Self::Etcd(etcd) => {
                etcd.wait_until_ready();
                etcd.save_snapshot();
                let revision = etcd.revision(&[0]).to_string();
                etcd.ctl(&["compact", &revision]);
            }
        }
    }

    /// Puts the copy back.
    pub fn restore(&mut self) {
        match self {
            Self::Embedded => {}
            Self::Postgres(server) => server.restore(),
            Self::Etcd(etcd) => etcd.restore_all(),
        }
    }

    /// How many processes it has that can be broken.
    pub fn members(&self) -> usize {
        match self {
            Self::Embedded => 0,
            Self::Postgres(_) => 1,
            Self::Etcd(_) => ETCD_MEMBERS,
        }
    }

    /// Stops one (SIGSTOP). Of a PostgreSQL it is the first process, so that new connections wait.
    pub fn pause(&self, member: usize) {
        match self {
            Self::Embedded => {}
            Self::Postgres(server) => machine::signal(server.pid(), Signal::STOP),
            Self::Etcd(etcd) => etcd.pause(member),
        }
    }

    /// Lets it go on.
    pub fn resume(&self, member: usize) {
        match self {
            Self::Embedded => {}
            Self::Postgres(server) => machine::signal(server.pid(), Signal::CONT),
            Self::Etcd(etcd) => etcd.resume(member),
        }
    }

    /// Kills one (SIGKILL). What it has stored stays.
    pub fn kill(&mut self, member: usize) {
        match self {
            Self::Embedded => {}
            Self::Postgres(server) => server.crash(),
            Self::Etcd(etcd) => etcd.kill(member),
        }
    }

    /// Starts it again.
    pub fn start_again(&mut self, member: usize) {
        match self {
            Self::Embedded => {}
            Self::Postgres(server) => server.start_again(&[]),
            Self::Etcd(etcd) => etcd.restart(member),
        }
    }
}

fn port_of(url: &str) -> u16 {
    let port = url.rsplit(':').next().and_then(|port| port.parse().ok());
    port.expect("a URL ends with its port")
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
