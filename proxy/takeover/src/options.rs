//! Options for serving takeovers.

use std::time::Duration;

use pgpalisade_tls::Login;

use super::cluster_lock::StoreLock;
use super::meters::Meters;

/// Options for serving takeovers.
#[derive(Debug, Clone)]
pub struct TakeoverOptions {
    /// Login of the control connection: to the same cluster as the clients' sessions, without a pooler.
    pub control: Login,
    /// Time limit of a declaration, takeover included. 5 s by default.
    pub timeout: Duration,
    /// Whether the store serves one proxy or several.
    pub store_lock: StoreLock,
    /// Whether marks are copied into the cluster.
    pub witness: WitnessMode,
    /// Time for which a start waits for a primary, and for a held cluster lock. 10 s by default.
    pub lock_wait: Duration,
    /// Interval at which records of ended sessions are removed. 30 s by default.
    pub reap_every: Duration,
    /// Host and pid of this proxy, kept with the marks for people.
    pub declared_by: String,
    /// Counters and measurements.
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
    /// Copied if the control role may write them.
    Auto,
    /// Not copied.
    Off,
}
