//! Options of a run.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use pgpalisade_test_servers::pooler;
use pgpalisade_test_servers::wire::Endpoint;
use serde::{Deserialize, Serialize};

use super::history::Target;
use super::listeners::Source;
use super::store::{Proxies, StoreKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Through proxies that share a store.
    Proxied(StoreKind),
    Direct,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxied(kind) => write!(f, "proxies with store {kind:?}"),
            Self::Direct => f.write_str("PostgreSQL without a proxy"),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub route: Route,
    pub duration: Duration,
    pub proxies: usize,
    /// Scopes with leaders that insert rows, besides the two writers of the shared row.
    pub scopes: usize,
    pub takeover_timeout: Duration,
    /// Allowed time of a declaration beyond it: the machine is shared and small.
    pub slack: Duration,
    pub faults: Faults,
    /// Server connections that the clients of a proxy share, each for a transaction; `None`: each has its own.
    pub shared: Option<u8>,
    /// For such a connection, before a declaration can begin.
    pub wait: Duration,
    /// What gives listeners their token, in runs with proxies. Programs then work behind them.
    pub listener: Option<Source>,
    /// In front of each proxy.
    pub pooler: Option<Pooler>,
}

/// A PgBouncer, or another pooler, between the clients and each proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Pooler {
    /// PgBouncer that lends connections for a session. SET declares
    Session,
    /// PgBouncer that lends connections for a transaction. SET LOCAL declares, and a rule allows nothing else
    Transaction,
    /// pgpool-II, which lends a connection for a session, and knows startup packets
    Pgpool,
    /// As transaction, but SET declares: the next client of a connection has the token of the one before, and the
    /// checker must find violations
    Careless,
}

impl Pooler {
    pub(super) fn before(self, proxy: &Endpoint) -> pooler::Pooler {
        match self {
            // One connection for each session: a client that waits for one cannot declare.
            Self::Session => {
                pooler::Pooler::before(proxy, "pool_mode = session\ndefault_pool_size = 30")
            }
            Self::Transaction | Self::Careless => {
                pooler::Pooler::before(proxy, "pool_mode = transaction\ndefault_pool_size = 6")
            }
            Self::Pgpool => pooler::Pooler::pgpool(proxy, 60, ""),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Faults {
    /// All but failovers and handovers
    All,
    /// Links and proxies
    Partitions,
    /// Links to the store: bytes are late and replies lost while writes are in flight
    Store,
    /// Clients, and operators' actions right after each other
    Operators,
    /// Clients, proxies, and the primary of two servers managed by Patroni
    Failovers,
    /// Clients, and proxies that stop in order
    Handovers,
}

impl Faults {
    /// Share of writes that first clear the token and declare it again, besides that shape's own share. The order of
    /// messages to the store matters if it hears of one session several times.
    pub(super) fn again(self) -> f64 {
        match self {
            Self::Store => 0.2,
            _ => 0.0,
        }
    }

    pub(super) fn breaks(self, target: Target) -> bool {
        match (self, target) {
            (Self::All, _) => true,
            (Self::Partitions, target) => !matches!(target, Target::Leader(_)),
            (Self::Store, Target::StoreLink(_))
            | (Self::Operators, Target::ClientLink(_) | Target::Leader(_))
            | (Self::Failovers | Self::Handovers, Target::Proxy(_) | Target::Leader(_)) => true,
            (Self::Store | Self::Operators | Self::Failovers | Self::Handovers, _) => false,
        }
    }
}

/// Scope whose leaders take their tokens, in runs with proxies.
pub(super) const TAKEN: &str = "taken";

/// Scope whose leaders are started by `pgpalisade elect` while it has the lease, in runs with proxies.
pub(super) const ELECTED: &str = "elected";

/// Scope whose token the listeners of the proxies give, and name of the application that works behind them.
pub const LED: &str = "led";

const SCOPES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

impl Plan {
    /// Scopes whose leaders insert rows.
    pub fn scope_names(&self) -> &'static [&'static str] {
        &SCOPES[..self.scopes]
    }

    /// The scope of the shared row is enforced, the others have this mode.
    pub fn policy(&self, mode: &str) -> String {
        let scope = |name: &&str| format!("[scope.{name}]\nmode = \"{mode}\"\n");
        let mut policy: String = self.scope_names().iter().map(scope).collect();
        if self.listener.is_some() {
            let rule = "[[session]]\nmatch = { application_name = \"led\" }\nscope = \"led\"\n";
            policy.push_str(rule);
        }
        if self.pooler == Some(Pooler::Transaction) {
            policy.push_str(
                "[[session]]\nmatch = { user = \"postgres\" }\ndeclare = \"transaction\"\n",
            );
        }
        policy
    }

    /// Two proxies if the store allows it, two scopes, and all faults.
    pub fn new(seed: u64, route: Route, duration: Duration) -> Self {
        Self {
            seed,
            route,
            duration,
            proxies: match route {
                Route::Proxied(kind) if kind.proxies() == Proxies::One => 1,
                _ => 2,
            },
            scopes: 2,
            takeover_timeout: Duration::from_secs(1),
            slack: Duration::from_secs(2),
            faults: Faults::All,
            shared: None,
            wait: Duration::from_secs(1),
            listener: None,
            pooler: None,
        }
    }

    /// Longer than a declaration may take.
    pub fn patience(&self) -> Duration {
        self.takeover_timeout + self.slack + Duration::from_secs(2)
    }
}
