//! An operator sets the mark of a scope, down or up, and what is kept of it.

use serde::{Deserialize, Serialize};

use crate::record::cut;
use crate::{Cluster, Mark, Rank, Registered, Scope, Token};

/// The record of a repair, kept with the mark for as long as no later one takes its place. For people; nothing is
/// decided by it but whether two repairs are the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// When, microseconds since the Unix epoch, by the clock of the one who asked for it.
    pub at: i64,
    /// Who: user and host, in words for people, at most [`Repair::BY_MAX`] bytes.
    pub by: String,
    /// Why, in the operator's words, at most [`Repair::REASON_MAX`] bytes.
    pub reason: String,
    /// The mark before, in the incarnation before.
    pub from: Token,
    /// What the mark was set to, in the incarnation that began with it.
    pub to: Token,
}

impl Repair {
    /// The most bytes of [`Self::by`].
    pub const BY_MAX: usize = 200;
    /// The most bytes of [`Self::reason`].
    pub const REASON_MAX: usize = 500;

    /// A record, with texts that are too long cut, at whole characters. What PostgreSQL cannot store is replaced.
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

/// What [`crate::Authority::repair`] is asked for.
#[derive(Debug, Clone)]
pub struct RepairRequest {
    /// The scope.
    pub scope: Scope,
    /// Its mark as the operator has seen it. Where it is another one by now, nothing changes.
    pub expected: Rank,
    /// The cluster whose sessions will be ended, as enrolled.
    pub cluster: Cluster,
    /// Who and why, and what the mark is set to.
    pub repair: Repair,
}

/// The answer to [`crate::Authority::repair`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repaired {
    /// The mark is set, in a new incarnation.
    Done {
        /// The mark now.
        mark: Mark,
        /// Every session of the scope that was registered before it, whatever its token, in the order of
        /// [`crate::Backend`]. None of them may write any more: they are to be ended.
        lower: Vec<Registered>,
    },
    /// The mark is not the expected one. Nothing has changed.
    Changed {
        /// The mark, where there is one.
        mark: Option<Mark>,
    },
    /// Another cluster is on record, or another timeline or start of it, or none. Nothing has changed.
    OtherCluster {
        /// What is on record.
        recorded: Option<Cluster>,
    },
}
