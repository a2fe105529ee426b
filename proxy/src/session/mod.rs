//! What one connection is doing. Pure: no I/O, and no opinion on whether a message may pass.

pub mod access;
pub mod command_tag;
pub mod in_flight;
pub mod ledger;
pub mod names;
pub mod search_path;
pub mod settings;
pub mod startup_options;
pub mod text_settings;

use crate::wire::backend::TransactionStatus;

/// Whether messages of the extended protocol were sent since the last Sync. Such a pipeline is a
/// transaction of its own where no block is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pipeline {
    /// Everything so far was synchronised.
    Closed,
    /// A Sync is due.
    Open,
}

/// Where the server stands, as far as it has said.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    /// The last ReadyForQuery.
    pub status: TransactionStatus,
    /// Whether a Sync is due.
    pub pipeline: Pipeline,
}

impl Position {
    /// Whether what is sent next belongs to a transaction that has begun already.
    #[inline]
    #[must_use]
    pub const fn is_inside(self) -> bool {
        !matches!(
            self,
            Self {
                status: TransactionStatus::Idle,
                pipeline: Pipeline::Closed
            }
        )
    }
}
