//! Repairs: an operator sets the mark of a scope, down or up.

use serde::{Deserialize, Serialize};

use crate::record::cut;
use crate::{Cluster, Mark, Rank, Registered, Scope, Token};

/// Record of a repair, kept with the mark until a later repair replaces it. For people; only decides whether two
/// repairs are the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// Time by the requester's clock, microseconds since the Unix epoch.
    pub at: i64,
    /// User and host, for people, at most [`Repair::BY_MAX`] bytes.
    pub by: String,
    /// The operator's reason, at most [`Repair::REASON_MAX`] bytes.
    pub reason: String,
    /// The mark before, in the previous incarnation.
    pub from: Token,
    /// The mark after, in the incarnation that began with it.
    pub to: Token,
}

impl Repair {
    /// Maximum bytes of [`Self::by`].
    pub const BY_MAX: usize = 200;
    /// Maximum bytes of [`Self::reason`].
    pub const REASON_MAX: usize = 500;

    /// A record with long texts cut at whole characters. Replaces characters that PostgreSQL cannot store.
    #[must_use]
    pub fn new(at: i64, by: &str, reason: &str, from: Token, to: Token) -> Self {
        let plain = |text: &str| text.replace('\0', "\u{fffd}");
        Self {
            at,
            by: cut(&plain(by), Self::BY_MAX).to_owned(),
            reason: cut(&plain(reason), Self::REASON_MAX).to_owned(),
            from,
            to,
        }
    }
}

/// Request to [`crate::Authority::repair`].
#[derive(Debug, Clone)]
pub struct RepairRequest {
    /// The scope.
    pub scope: Scope,
    /// Mark as the operator saw it. If the mark is another one by now, nothing changes.
    pub expected: Rank,
    /// Cluster whose sessions will be ended, as enrolled.
    pub cluster: Cluster,
    /// The new mark, who sets it, and why.
    pub repair: Repair,
}

/// Answer to [`crate::Authority::repair`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "verdict")]
pub enum Repaired {
    /// The mark is set, in a new incarnation.
    #[serde(rename = "done")]
    Done {
        /// The new mark.
        mark: Mark,
        /// Every session of the scope registered before, with any token, in the order of [`crate::Backend`]. They
        /// must be ended.
        lower: Vec<Registered>,
    },
    /// The mark is not the expected one. Nothing changed.
    #[serde(rename = "changed")]
    Changed {
        /// The mark, if any.
        mark: Option<Mark>,
    },
    /// No cluster is recorded, or another cluster, timeline or start. Nothing changed.
    #[serde(rename = "other")]
    OtherCluster {
        /// What is on record.
        recorded: Option<Cluster>,
    },
}
