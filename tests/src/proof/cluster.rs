//! Everything that a run is made of: PostgreSQL, a store, proxies, and a link on every way between them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use crate::policy::PolicyFile;
use crate::postgres::{Auth, Postgres};
use crate::proxy::{Options, Proxy};
use crate::wire::{Endpoint, Wire};

use super::cutter::{Link, Network};
use super::history::Target;
use super::plan::{Plan, Route};
use super::store::RunningStore;
use super::{row_writers, shapes, truth};

/// What is confirmed must survive a crash; and a crash must not take longer than it has to.
const SERVER_SETTINGS: [&str; 5] = [
    "max_connections=120",
    "fsync=on",
    "recovery_init_sync_method=syncfs",
    "wal_level=logical",
    "max_wal_size=256MB",
];

/// What runs. Proxies are dropped first, the server last.
#[derive(Debug)]
pub struct Cluster {
    proxies: Vec<Mutex<Proxy>>,
    policies: Vec<PolicyFile>,
    links: Vec<(Target, Link)>,
    addresses: Vec<SocketAddr>,
    store: Option<Mutex<RunningStore>>,
    network: Network,
    socket: Endpoint,
    postgres: Mutex<Postgres>,
}

impl Cluster {
    /// Starts what the plan says.
    pub fn start(plan: &Plan) -> Self {
        let postgres = Postgres::start_with_clock(Auth::Trust, &SERVER_SETTINGS);
        postgres.sql(shapes::SETUP);
        postgres.sql(&format!("CREATE DATABASE {}", row_writers::DATABASE));
        let shared_row = [("user", "postgres"), ("database", row_writers::DATABASE)];
        Wire::login(&postgres.socket(), &shared_row).ok(row_writers::SETUP);
        postgres.sql(truth::SETUP);
        let mut cluster = Self {
            proxies: Vec::new(),
            policies: Vec::new(),
            links: Vec::new(),
            addresses: Vec::new(),
            store: None,
            network: Network::new(),
            socket: postgres.socket(),
            postgres: Mutex::new(postgres),
        };
        match plan.route {
            Route::Direct => cluster.lead_to_postgres(plan),
            Route::Proxied(kind) => {
                let store = RunningStore::start(kind);
                for number in 0..plan.proxies {
                    cluster.start_proxy(plan, &store, number);
                }
                cluster.store = Some(Mutex::new(store));
            }
        }
        cluster
    }

    /// The same places for clients, without a proxy behind them.
    fn lead_to_postgres(&mut self, plan: &Plan) {
        let server = self.postgres().tcp();
        for number in 0..plan.proxies {
            self.add_client_link(number, server.clone());
        }
    }

    fn start_proxy(&mut self, plan: &Plan, store: &RunningStore, number: usize) {
        let server = self.postgres().tcp();
        let upstream = self.network.link(server.clone());
        let control = self.network.link(server);
        let (marks, store_links) = store.reach(&self.network);
        let takeover = format!("{}ms", plan.takeover_timeout.as_millis());
        let policy = PolicyFile::new(&plan.policy("enforce"));
        let mut options = Options::new(&self.postgres())
            .flag("--takeover-timeout", &takeover)
            .flag("--policy", &policy.path().display().to_string());
        options.upstream = format!("postgres://{}", upstream.address());
        options.control = format!(
            "host=127.0.0.1 port={} user=postgres dbname=postgres",
            control.address().port()
        );
        options.store = marks;
        let proxy = Proxy::start_with(options);
        self.add_client_link(number, proxy.endpoint());
        self.links.push((Target::UpstreamLink(number), upstream));
        self.links.push((Target::ControlLink(number), control));
        for link in store_links {
            self.links.push((Target::StoreLink(number), link));
        }
        self.proxies.push(Mutex::new(proxy));
        self.policies.push(policy);
    }

    fn add_client_link(&mut self, number: usize, server: Endpoint) {
        let link = self.network.link(server);
        self.addresses.push(link.address());
        self.links.push((Target::ClientLink(number), link));
    }

    /// Where clients connect.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The proxies.
    pub fn proxies(&self) -> &[Mutex<Proxy>] {
        &self.proxies
    }

    /// Puts a policy into force on every proxy. All of them must run.
    pub fn reload(&self, text: &str) {
        for (proxy, policy) in self.proxies.iter().zip(&self.policies) {
            policy.reload(&proxy.lock().expect("a proxy"), text);
        }
    }

    /// Writes what the proxies said to files in `dir`: `proxy-0.log` and so on.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn keep_logs(&self, dir: &Path) -> io::Result<()> {
        for (number, proxy) in self.proxies.iter().enumerate() {
            let output = proxy.lock().expect("a proxy").output();
            std::fs::write(dir.join(format!("proxy-{number}.log")), output)?;
        }
        std::fs::write(dir.join("postgres.log"), self.postgres().log())
    }

    /// Everything that can be cut.
    pub fn links(&self) -> &[(Target, Link)] {
        &self.links
    }

    /// The store, where there is one.
    pub fn store(&self) -> Option<&Mutex<RunningStore>> {
        self.store.as_ref()
    }

    /// PostgreSQL's own socket, past everything that can be cut.
    pub fn socket(&self) -> &Endpoint {
        &self.socket
    }

    /// The server. Locked while it is down.
    pub fn postgres(&self) -> MutexGuard<'_, Postgres> {
        self.postgres.lock().expect("postgres")
    }
}
