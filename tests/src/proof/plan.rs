//! What is to be run.

use std::fmt;
use std::time::Duration;

use super::history::Target;
use super::store::{Proxies, StoreKind};

/// The way of the clients to PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Through proxies that share a store.
    Proxied(StoreKind),
    /// Past everything: what happens without fencing.
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

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What all choices come from.
    pub seed: u64,
    /// The way of the clients.
    pub route: Route,
    /// For how long.
    pub duration: Duration,
    /// How many proxies.
    pub proxies: usize,
    /// How many scopes with leaders that insert rows. The two writers of the shared row come on top.
    pub scopes: usize,
    /// `takeover.timeout`.
    pub takeover_timeout: Duration,
    /// What a declaration may take beyond it: the machine is shared and small.
    pub slack: Duration,
    /// Whether PostgreSQL crashes and clients die, or only networks and proxies fail.
    pub faults: Faults,
}

/// What is broken in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Everything.
    All,
    /// Links and proxies.
    Partitions,
    /// The links to the store, where bytes are late and answers are lost while writes are on their way.
    Store,
    /// Clients, and what operators do, one thing right after the other.
    Operators,
    /// Clients, proxies, and the primary of two servers that Patroni keeps.
    Failovers,
}

impl Faults {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::All,
        Self::Partitions,
        Self::Store,
        Self::Operators,
        Self::Failovers,
    ];

    /// What the command line calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Partitions => "partitions",
            Self::Store => "store",
            Self::Operators => "operators",
            Self::Failovers => "failovers",
        }
    }

    /// How often leaders lay their token down and declare it again, beside the share of that way. What a store is told
    /// about one session several times is where it matters what comes last.
    pub(super) fn again(self) -> f64 {
        match self {
            Self::Store => 0.2,
            Self::All | Self::Partitions | Self::Operators | Self::Failovers => 0.0,
        }
    }

    /// Whether a proxy, a client or a link fails.
    pub(super) fn breaks(self, target: Target) -> bool {
        match (self, target) {
            (Self::All, _) => true,
            (Self::Partitions, target) => !matches!(target, Target::Leader(_)),
            (Self::Store, Target::StoreLink(_))
            | (Self::Operators, Target::ClientLink(_) | Target::Leader(_))
            | (Self::Failovers, Target::Proxy(_) | Target::Leader(_)) => true,
            (Self::Store | Self::Operators | Self::Failovers, _) => false,
        }
    }
}

/// The scope whose leaders take their tokens, where there is a proxy that gives them.
pub(super) const TAKEN: &str = "taken";

/// The scope whose leaders `pgpalisade elect` starts, each while it has the lease, where there is a proxy.
pub(super) const ELECTED: &str = "elected";

const SCOPES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

impl Plan {
    /// The scopes whose leaders insert rows.
    pub fn scope_names(&self) -> &'static [&'static str] {
        &SCOPES[..self.scopes]
    }

    /// A policy with this mode for each of them. That of the shared row is enforced.
    pub fn policy(&self, mode: &str) -> String {
        let scope = |name: &&str| format!("[scope.{name}]\nmode = \"{mode}\"\n");
        self.scope_names().iter().map(scope).collect()
    }

    /// Two proxies, if the store allows it, two scopes, and everything fails.
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
        }
    }

    /// How long a client waits for the answer to a declaration: longer than it may take.
    pub fn patience(&self) -> Duration {
        self.takeover_timeout + self.slack + Duration::from_secs(2)
    }
}
