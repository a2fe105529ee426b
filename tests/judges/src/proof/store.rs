//! The store shared by the proxies of a run, and its faults.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::ValueEnum;
use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::machine::{self, Signal};
use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::proxy::Store;
use pgpalisade_test_servers::wire::Endpoint;

use super::client::Client;
use super::cutter::{Link, Network};

/// Enough members to answer while one is down, and not while two are.
const ETCD_MEMBERS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// Inside the only proxy
    Embedded,
    /// A server of its own
    Postgres,
    /// Three members
    Etcd,
}

impl StoreKind {
    pub fn proxies(self) -> Proxies {
        match self {
            Self::Embedded => Proxies::One,
            Self::Postgres | Self::Etcd => Proxies::Many,
        }
    }
}

/// Whether proxies can share a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxies {
    One,
    Many,
}

#[derive(Debug)]
pub enum RunningStore {
    Embedded,
    Postgres(Postgres),
    Etcd(Etcd),
}

impl RunningStore {
    pub fn start(kind: StoreKind) -> Self {
        match kind {
            StoreKind::Embedded => Self::Embedded,
            StoreKind::Postgres => Self::Postgres(Postgres::start_with_clock(Auth::Trust, &[])),
            StoreKind::Etcd => Self::Etcd(Etcd::start(ETCD_MEMBERS)),
        }
    }

    /// Store option of a proxy, with its links: one for each member.
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

    /// Saves a copy of the current state, replacing an earlier one. etcd then compacts its history.
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

    pub fn restore(&mut self) {
        match self {
            Self::Embedded => {}
            Self::Postgres(server) => server.restore(),
            Self::Etcd(etcd) => etcd.restore_all(),
        }
    }

    /// Deletes the lease of a scope, if the store answers. Its holder is not told.
    pub fn lose_lease(&self, scope: &str) {
        match self {
            Self::Embedded => {}
            Self::Postgres(server) => {
                let sql =
                    format!("DELETE FROM pgpalisade_authority.leases WHERE scope = '{scope}'");
                let client = Client::login(&server.socket(), &[], Duration::from_secs(1));
                let _deleted = client.map(|mut client| client.query(&sql));
            }
            Self::Etcd(etcd) => {
                let _deleted = etcd.try_ctl(&["del", &format!("/pgpalisade/scope-lease/{scope}")]);
            }
        }
    }

    /// Steps the clock by which leases run out, if it can be stepped.
    pub fn set_clock(&self, ahead: i64) {
        if let Self::Postgres(server) = self {
            server.set_clock(ahead);
        }
    }

    pub fn members(&self) -> usize {
        match self {
            Self::Embedded => 0,
            Self::Postgres(_) => 1,
            Self::Etcd(_) => ETCD_MEMBERS,
        }
    }

    /// Stops a member (SIGSTOP); of a PostgreSQL the postmaster, so that new connections wait.
    pub fn pause(&self, member: usize) {
        match self {
            Self::Embedded => {}
            Self::Postgres(server) => machine::signal(server.pid(), Signal::STOP),
            Self::Etcd(etcd) => etcd.pause(member),
        }
    }

    pub fn resume(&self, member: usize) {
        match self {
            Self::Embedded => {}
            Self::Postgres(server) => machine::signal(server.pid(), Signal::CONT),
            Self::Etcd(etcd) => etcd.resume(member),
        }
    }

    /// Keeps its data.
    pub fn kill(&mut self, member: usize) {
        match self {
            Self::Embedded => {}
            Self::Postgres(server) => server.crash(),
            Self::Etcd(etcd) => etcd.kill(member),
        }
    }

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
