//! State by which a text is judged.

use std::sync::Arc;

use crate::guard::Guard;
use crate::prepared::PreparedNames;
use crate::state::SessionState;
use crate::{HeldTokens, SessionFence};

/// Whether messages of the extended protocol were sent since the last Sync. Outside a transaction block, such a
/// pipeline is a transaction of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pipeline {
    /// Nothing was sent since the last Sync.
    Closed,
    /// A Sync is due.
    Open,
}

/// State of a session when a text arrives.
#[derive(Clone, Copy)]
pub struct Situation<'a> {
    /// Policy rules for this session.
    pub fence: &'a SessionFence,
    /// Its token and transaction status. A text that depends on the token waits until everything before is answered.
    pub state: &'a SessionState,
    /// Accepted tokens, whether in force or not.
    pub accepted: &'a [Arc<HeldTokens>],
    /// Whether the open transaction may have written.
    pub wrote: bool,
    /// Whether the text is part of a pipeline.
    pub pipeline: Pipeline,
    /// Read-only guard of a session that may not write.
    pub guard: Guard,
    /// Prepared statements and portals by name, as the server has confirmed them, and what was sent since in the same
    /// request cycle. `None`: an earlier cycle is in flight, which stands for the worst case.
    pub names: Option<&'a dyn PreparedNames>,
}
