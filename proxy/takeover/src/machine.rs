//! Vocabulary of the state machines: each asks for one thing at a time, gets the answer as an event, and ends with a
//! result. A driver supplies the clock and carries the requests out.

#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use pgpalisade_authority::{
    AuthorityError, Backend, Cluster, Declaration, Declared, Drained, Mark, Rank, Registered, Scope,
};

use super::error::DeclareError;
use super::sessions::Holdout;

/// Next step of a machine.
#[derive(Debug)]
pub(super) enum Step {
    /// Carry this out, after a pause.
    Ask(Duration, Request),
    End(Result<(), DeclareError>),
}

impl Step {
    pub(super) const fn ask(request: Request) -> Self {
        Self::Ask(Duration::ZERO, request)
    }
}

/// A request to the authority, the server of the control connection, or the witness there.
#[derive(Debug)]
pub(super) enum Request {
    Mark(Scope),
    Declare(Declaration),
    Sessions,
    Recorded,
    Drained(Scope, Rank, Vec<Backend>),
    Forget(Vec<Backend>),
    Terminate(Vec<Backend>),
    Alive(Vec<Backend>),
    Holdouts(Vec<Backend>),
    HasWitness,
    Witness(Scope, Mark),
}

/// Input of a machine.
#[derive(Debug)]
pub(super) enum Event {
    Begin,
    Mark(Option<Mark>),
    Declared(Declared),
    Sessions(Vec<(Scope, Registered)>),
    /// Cluster on record in the authority.
    Recorded(Option<Cluster>),
    Drained(Drained),
    /// Number of the terminated sessions with an open transaction.
    Terminated(u64),
    /// Sessions that are still there, and the cluster that reported them.
    Alive(BTreeSet<Backend>, Cluster),
    Holdouts(Vec<Holdout>),
    HasWitness(bool, Cluster),
    Done,
    Failed(DeclareError),
}

impl Event {
    /// The failure. Another event here answers a request that was not made, so the work cannot go on.
    pub(super) fn into_error(self) -> DeclareError {
        match self {
            Self::Failed(error) => error,
            other => AuthorityError::Unavailable(format!("unexpected answer: {other:?}")).into(),
        }
    }
}
