//! How takeovers are served.

use std::time::Duration;

use pgpalisade_tls::Login;

use super::cluster_lock::StoreLock;
use super::meters::Meters;

/// How takeovers are served.
#[derive(Debug, Clone)]
pub struct TakeoverOptions {
    /// Where the control connection goes: to the same cluster as the clients' sessions, without a pooler.
    pub control: Login,
    /// How long a declaration may take, takeover included. 5 s by default.
    pub timeout: Duration,
    /// Whether the store serves one proxy or several.
    pub store_lock: StoreLock,
    /// Whether marks are copied into the cluster.
    pub witness: WitnessMode,
    /// How long a start waits for a primary, and for a cluster lock that somebody holds. 10 s by default.
    pub lock_wait: Duration,
    /// How often records of ended sessions are removed. 30 s by default.
    pub reap_every: Duration,
    /// This proxy in words for people, kept with the marks: host and pid.
    pub declared_by: String,
    /// What is counted and measured.
    pub meters: Meters,
}

impl TakeoverOptions {
    /// The defaults, for the embedded store.
    pub fn new(control: impl Into<Login>, declared_by: String) -> Self {
        Self {
            control: control.into(),
            timeout: Duration::from_secs(5),
            store_lock: StoreLock::Exclusive,
            witness: WitnessMode::Auto,
            lock_wait: Duration::from_secs(10),
            reap_every: Duration::from_secs(30),
            declared_by,
            meters: Meters::default(),
        }
    }
}

/// Whether marks are copied into the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WitnessMode {
    /// Where the control role may.
    Auto,
    /// Never.
    Off,
}
