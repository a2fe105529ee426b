//! The right of one message to travel to PostgreSQL.

use crate::rejection::Rejection;

/// Says that one message has been decided and may be sent. Only this module's parent makes them, and
/// only `Upstream::admit` takes them, so a message that was not
/// decided cannot be sent: the code would not compile.
///
/// A permit says that the token was current when it was looked at, not that it still is when the
/// message arrives. What makes a stale write impossible is the barrier: see `ARCHITECTURE.md`.
#[must_use = "a permit is to be spent on the message that it was made for"]
#[derive(Debug)]
pub struct Permit {
    basis: Basis,
}

/// What a permit rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The message needs no token.
    NotRequired,
    /// The session holds the current tokens that it needs to write.
    Token,
    /// It may write without a token, or its refusal is only observed.
    Exempt,
    /// The transaction has failed: the server refuses the message itself.
    FailedTransaction,
}

impl Permit {
    pub(super) const fn new(basis: Basis) -> Self {
        Self { basis }
    }

    /// What it rests on.
    #[must_use]
    pub const fn basis(&self) -> Basis {
        self.basis
    }
}

/// A request that may pass.
#[derive(Debug)]
pub struct Admitted {
    /// Its right to be sent.
    pub permit: Permit,
    /// Why it would be refused, were that not only observed.
    pub observed: Option<Box<Rejection>>,
}

/// What the permit of a request will rest on, gathered statement by statement. Only the checks of the fence change it.
#[derive(Debug)]
pub struct Grounds {
    pub(super) basis: Basis,
    pub(super) observed: Option<Box<Rejection>>,
}

impl Default for Grounds {
    /// Those of a request without a statement.
    fn default() -> Self {
        Self {
            basis: Basis::NotRequired,
            observed: None,
        }
    }
}

impl Grounds {
    /// The server executes nothing of the rest, for the transaction has failed.
    pub const fn nothing_runs(&mut self) {
        self.basis = Basis::FailedTransaction;
    }

    /// The permit of a request whose statements have all passed.
    pub fn admitted(self) -> Admitted {
        Admitted {
            permit: Permit::new(self.basis),
            observed: self.observed,
        }
    }
}
