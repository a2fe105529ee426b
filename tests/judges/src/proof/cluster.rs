//! All parts of a run: PostgreSQL, a store, proxies, and a link on every connection between them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use pgpalisade_harness::child::Running;
use tempfile::TempDir;

use pgpalisade_test_servers::machine;
use pgpalisade_test_servers::patroni::Patroni;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::pooler::Pooler;
use pgpalisade_test_servers::postgres::{Auth, Postgres, scratch_dir};
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::{Endpoint, Wire};

use super::cutter::{Link, Network};
use super::history::{Recorder, Target};
use super::listeners::{Election, Listener};
use super::plan::{Faults, Plan, Route};
use super::store::RunningStore;
use super::{row_writers, shapes, surviving, truth};

/// Confirmed commits must survive a crash, and recovery must be fast.
const SERVER_SETTINGS: [&str; 5] = [
    "max_connections=120",
    "fsync=on",
    "recovery_init_sync_method=syncfs",
    "wal_level=logical",
    "max_wal_size=256MB",
];

#[derive(Debug)]
pub struct Cluster {
    proxies: Vec<Mutex<Proxy>>,
    policies: Vec<PolicyFile>,
    links: Vec<(Target, Link)>,
    addresses: Vec<SocketAddr>,
    poolers: Vec<Pooler>,
    listeners: Vec<Listener>,
    election: Election,
    store: Option<Mutex<RunningStore>>,
    network: Network,
    servers: ClusterServers,
}

#[derive(Debug)]
enum ClusterServers {
    One {
        socket: Endpoint,
        postgres: Mutex<Postgres>,
    },
    Pair {
        servers: Mutex<Box<Patroni>>,
        first: u64,
        /// To the primary, in runs without proxies.
        balancer: Option<(Running, TempDir)>,
    },
}

impl ClusterServers {
    fn start(plan: &Plan) -> Self {
        if plan.faults == Faults::Failovers {
            let servers = Patroni::start();
            set_up(&|database| servers.admin(database));
            let first = "SELECT pg_current_wal_insert_lsn() - '0/0'";
            let first = servers.admin("postgres").rows(first).concat().concat();
            return Self::Pair {
                servers: Mutex::new(Box::new(servers)),
                first: first.parse().expect("a position"),
                balancer: None,
            };
        }
        let postgres = Postgres::start_with_clock(Auth::Trust, &SERVER_SETTINGS);
        let socket = postgres.socket();
        set_up(&|database| Wire::login(&socket, &[("user", "postgres"), ("database", database)]));
        postgres.sql(truth::SETUP);
        Self::One {
            socket,
            postgres: Mutex::new(postgres),
        }
    }
}

fn set_up(admin: &dyn Fn(&str) -> Wire) {
    admin("postgres").ok(shapes::SETUP);
    admin("postgres").ok(&format!("CREATE DATABASE {}", row_writers::DATABASE));
    admin(row_writers::DATABASE).ok(row_writers::SETUP);
}

impl Cluster {
    pub fn start(plan: &Plan) -> Self {
        let mut cluster = Self {
            proxies: Vec::new(),
            policies: Vec::new(),
            links: Vec::new(),
            addresses: Vec::new(),
            poolers: Vec::new(),
            listeners: Vec::new(),
            election: Election::start(plan.listener),
            store: None,
            network: Network::new(),
            servers: ClusterServers::start(plan),
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

    /// Opens the same client addresses without proxies.
    fn lead_to_postgres(&mut self, plan: &Plan) {
        let server = match &mut self.servers {
            ClusterServers::One { postgres, .. } => postgres.get_mut().expect("postgres").tcp(),
            ClusterServers::Pair {
                servers, balancer, ..
            } => {
                let dir = scratch_dir();
                let (haproxy, endpoint) = servers.get_mut().expect("servers").haproxy(dir.path());
                *balancer = Some((haproxy, dir));
                endpoint
            }
        };
        for number in 0..plan.proxies {
            self.add_client_link(plan, number, server.clone());
        }
    }

    fn start_proxy(&mut self, plan: &Plan, store: &RunningStore, number: usize) {
        let mut options = match &self.servers {
            ClusterServers::One { postgres, .. } => {
                let postgres = postgres.lock().expect("postgres");
                let upstream = self.network.link(postgres.tcp());
                let control = self.network.link(postgres.tcp());
                let mut options = Options::new(&postgres);
                options.upstream = format!("postgres://{}", upstream.address());
                options.control = format!(
                    "host=127.0.0.1 port={} user=postgres dbname=postgres",
                    control.address().port()
                );
                self.links.push((Target::UpstreamLink(number), upstream));
                self.links.push((Target::ControlLink(number), control));
                options
            }
            // A login may wait for a primary. That must not prolong a declaration.
            ClusterServers::Pair { servers, .. } => {
                let options = servers.lock().expect("servers").options();
                options.flag("--login-timeout", "1s")
            }
        };
        let (marks, store_links) = store.reach(&self.network);
        let takeover = format!("{}ms", plan.takeover_timeout.as_millis());
        let policy = PolicyFile::new(&plan.policy("enforce"));
        options = options
            .flag("--takeover-timeout", &takeover)
            .flag("--policy", &policy.path().display().to_string());
        if let Some(shared) = plan.shared {
            options = options
                .flag("--pool", "transaction")
                .flag("--backends-max", &shared.to_string())
                .flag("--backends-wait", &format!("{}ms", plan.wait.as_millis()));
        }
        if plan.listener.is_some() {
            let direct = SocketAddr::from((Ipv4Addr::LOCALHOST, machine::free_port()));
            options = options.flag("--listener", &self.election.table(direct, number));
            self.listen(number, direct);
        }
        options.store = marks;
        let proxy = Proxy::start_with(options);
        self.add_client_link(plan, number, proxy.endpoint());
        for link in store_links {
            self.links.push((Target::StoreLink(number), link));
        }
        self.proxies.push(Mutex::new(proxy));
        self.policies.push(policy);
    }

    fn add_client_link(&mut self, plan: &Plan, number: usize, server: Endpoint) {
        let link = self.network.link(server);
        let mut address = link.address();
        if let Some(kind) = plan.pooler {
            let pooler = kind.before(&Endpoint::Tcp(address));
            address.set_port(pooler.port());
            self.poolers.push(pooler);
        }
        self.addresses.push(address);
        self.links.push((Target::ClientLink(number), link));
    }

    /// Opens a link to a proxy's listener that gives a token.
    fn listen(&mut self, proxy: usize, direct: SocketAddr) {
        let link = self.network.link(Endpoint::Tcp(direct));
        self.listeners.push(Listener {
            proxy,
            address: link.address(),
            direct,
        });
        self.links.push((Target::ClientLink(proxy), link));
    }

    /// What decides which of the listeners gives a token.
    pub fn election(&self) -> &Election {
        &self.election
    }

    /// Those that give a token.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub fn proxies(&self) -> &[Mutex<Proxy>] {
        &self.proxies
    }

    /// Loads a policy into every proxy. All must be running.
    pub fn reload(&self, text: &str) {
        for (proxy, policy) in self.proxies.iter().zip(&self.policies) {
            policy.reload(&proxy.lock().expect("a proxy"), text);
        }
    }

    /// Copies the logs of proxies and servers to files in `dir`: `proxy-0.log` and so on.
    pub fn keep_logs(&self, dir: &Path) -> io::Result<()> {
        for (number, proxy) in self.proxies.iter().enumerate() {
            let output = proxy.lock().expect("a proxy").output();
            std::fs::write(dir.join(format!("proxy-{number}.log")), output)?;
        }
        let Some(servers) = self.pair() else {
            return std::fs::write(dir.join("postgres.log"), self.postgres().log());
        };
        let servers = servers.lock().expect("servers");
        std::fs::write(dir.join("postgres-a.log"), servers.log(0))?;
        std::fs::write(dir.join("postgres-b.log"), servers.log(1))
    }

    pub fn links(&self) -> &[(Target, Link)] {
        &self.links
    }

    /// If the proxies share one.
    pub fn store(&self) -> Option<&Mutex<RunningStore>> {
        self.store.as_ref()
    }

    /// PostgreSQL's own socket, past all links.
    ///
    /// # Panics
    ///
    /// With two servers.
    pub fn socket(&self) -> &Endpoint {
        match &self.servers {
            ClusterServers::One { socket, .. } => socket,
            ClusterServers::Pair { .. } => panic!("two servers have no common socket"),
        }
    }

    pub fn postgres(&self) -> MutexGuard<'_, Postgres> {
        match &self.servers {
            ClusterServers::One { postgres, .. } => postgres.lock().expect("postgres"),
            ClusterServers::Pair { .. } => panic!("there are two servers"),
        }
    }

    /// If there are two. Locked while one of them is broken.
    pub fn pair(&self) -> Option<&Mutex<Box<Patroni>>> {
        match &self.servers {
            ClusterServers::One { .. } => None,
            ClusterServers::Pair { servers, .. } => Some(servers),
        }
    }

    /// Records the commits of the pair, if there is one. All writers must have ended.
    pub fn record_survivors(&self, recorder: &Recorder) {
        if let ClusterServers::Pair { servers, first, .. } = &self.servers {
            surviving::record(&servers.lock().expect("servers"), *first, recorder);
        }
    }

    /// Superuser session on a database, directly on the primary, past all links.
    pub fn admin(&self, database: &str) -> Wire {
        match &self.servers {
            ClusterServers::One { socket, .. } => {
                Wire::login(socket, &[("user", "postgres"), ("database", database)])
            }
            ClusterServers::Pair { servers, .. } => {
                servers.lock().expect("servers").admin(database)
            }
        }
    }
}
