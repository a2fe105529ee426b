//! Cluster that the marks are for.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::record::utc;

/// PostgreSQL cluster at a point of its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cluster {
    /// Made by initdb and kept by every replica: `pg_control_system().system_identifier`.
    pub system_identifier: u64,
    /// At least one higher after every promotion
    /// (<https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-TIMELINES>).
    pub timeline: u32,
    /// Start of this server: `pg_postmaster_start_time()`, microseconds since the Unix epoch.
    pub postmaster_us: i64,
}

impl Cluster {
    /// Whether a store with `recorded` accepts this cluster. Restarts and promotions are accepted. Of two servers
    /// with the same storage, one of them a copy, only the one started last is accepted.
    #[must_use]
    pub fn follows(&self, recorded: &Self) -> bool {
        let at = |cluster: &Self| (cluster.timeline, cluster.postmaster_us);
        self.system_identifier == recorded.system_identifier && at(self) >= at(recorded)
    }

    /// Whether an operator who saw `seen` on record may put this cluster there. Nothing else may have been recorded
    /// since, except by this very step.
    pub(crate) fn recovers(&self, seen: Option<Self>, recorded: Self) -> bool {
        Some(recorded) == seen || recorded == *self
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on timeline {} (server started {})",
            self.system_identifier,
            self.timeline,
            utc(self.postmaster_us)
        )
    }
}
