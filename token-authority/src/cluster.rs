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
}

impl Cluster {
    /// Whether a store that has `recorded` on record accepts this cluster.
    #[must_use]
    pub fn follows(&self, recorded: &Self) -> bool {
        self.system_identifier == recorded.system_identifier && self.timeline >= recorded.timeline
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on timeline {}",
            self.system_identifier, self.timeline
        )
    }
}
