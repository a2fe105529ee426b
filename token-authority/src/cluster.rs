//! Which PostgreSQL cluster the marks are for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A PostgreSQL cluster at a point of its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cluster {
    /// Made by initdb and kept by every replica: `pg_control_system().system_identifier`.
    pub system_identifier: u64,
    /// Rises by at least one with every promotion
    /// (<https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-TIMELINES>).
    pub timeline: u32,
    /// When this server was started: `pg_postmaster_start_time()`, microseconds since the Unix epoch.
    pub postmaster_us: i64,
}

impl Cluster {
    /// Whether a store that has `recorded` on record accepts this cluster: a restart and a promotion go on, and of two
    /// servers with the same storage, one of them a copy, only the one that was started last.
    #[must_use]
    pub fn follows(&self, recorded: &Self) -> bool {
        let at = |cluster: &Self| (cluster.timeline, cluster.postmaster_us);
        self.system_identifier == recorded.system_identifier && at(self) >= at(recorded)
    }

    /// Whether it may be put on record by an operator who has seen this one there: nothing has come in between, or this
    /// very step.
    pub(crate) fn recovers(&self, seen: Option<Self>, recorded: Self) -> bool {
        Some(recorded) == seen || recorded == *self
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on timeline {} (server started {} us)",
            self.system_identifier, self.timeline, self.postmaster_us
        )
    }
}
