//! The right of one message to travel to PostgreSQL.

/// Says that one message has been decided and may be sent. Only this module's parent makes them, and
/// only [`Upstream::admit`](crate::upstream::Upstream::admit) takes them, so a message that was not
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
