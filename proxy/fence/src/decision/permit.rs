//! The right of one message to be sent to PostgreSQL.

use pgpalisade_wire::header::{HEADER_LEN, Header};

use crate::rejection::Rejection;

/// Proof that one message was decided and may be sent. Only the decision makes permits, and only the upstream writer
/// spends them, on a message of this type and length. Code that sends a message without a decision does not compile.
///
/// The token was current when it was checked; it may not be when the message arrives. The barrier makes a stale write
/// impossible: see `ARCHITECTURE.md`.
///
/// ```compile_fail
/// use pgpalisade_fence::{Basis, Permit};
/// let permit = Permit { tag: b'Q', basis: Basis::Exempt, body_len: 9 };
/// ```
///
/// ```compile_fail
/// use pgpalisade_fence::{Basis, Permit};
/// # use pgpalisade_wire::header::Header;
/// let permit = Permit::new(Header { tag: b'Q', body_len: 9 }, Basis::Exempt);
/// ```
///
/// ```compile_fail
/// # fn twice(permit: pgpalisade_fence::Permit) {
/// let another = permit.clone();
/// # }
/// ```
///
/// ```compile_fail
/// let grounds = pgpalisade_fence::Grounds::default();
/// ```
///
/// A permit can be read:
///
/// ```
/// fn basis(permit: &pgpalisade_fence::Permit) -> pgpalisade_fence::Basis {
///     permit.basis()
/// }
/// ```
#[must_use = "a permit is to be spent on the message that it was made for"]
#[derive(Debug)]
pub struct Permit {
    // Passed in registers, so no `Header`.
    tag: u8,
    basis: Basis,
    body_len: u32,
}

/// Reason for a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The message needs no token.
    NotRequired,
    /// The session holds the current tokens that it needs to write.
    Token,
    /// The session may write without a token, or its refusal is only observed.
    Exempt,
    /// The transaction has failed: the server refuses the message itself.
    FailedTransaction,
}

impl Permit {
    #[inline]
    pub(super) fn new(message: Header, basis: Basis) -> Self {
        // No PostgreSQL message is that long, so nothing can be sent on such a permit.
        let body_len = u32::try_from(message.body_len).unwrap_or(u32::MAX);
        Self {
            tag: message.tag,
            basis,
            body_len,
        }
    }

    /// Length of the message at the front of these bytes, if the permit is for that message.
    #[inline]
    #[must_use]
    pub fn frame_len(self, bytes: &[u8]) -> Option<usize> {
        let &[tag, a, b, c, d] = bytes.first_chunk::<HEADER_LEN>()?;
        // The length on the wire counts itself.
        let body_len = u32::from_be_bytes([a, b, c, d]).checked_sub(4)?;
        let is_this = tag == self.tag && body_len == self.body_len;
        is_this.then_some(HEADER_LEN + self.body_len as usize)
    }

    /// Reason for the permit.
    #[inline]
    #[must_use]
    pub const fn basis(&self) -> Basis {
        self.basis
    }
}

/// Permission of a request to change data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Leave {
    /// Judged to change none.
    #[default]
    Read,
    /// Judged to change none, but outside read-only mode: a function of the database may have written.
    ReadUnguarded,
    /// It may write.
    Write,
}

impl Leave {
    /// Whether the transaction may have written because of it.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::ReadUnguarded | Self::Write)
    }
}

/// A request that may pass.
#[derive(Debug)]
pub struct Admitted {
    /// Its right to be sent.
    pub permit: Permit,
    /// Refusal that is only observed, if any.
    pub observed: Option<Box<Rejection>>,
}

/// Grounds for the permit of a message, gathered statement by statement.
#[derive(Debug)]
pub(super) struct Grounds {
    pub(super) basis: Basis,
    pub(super) observed: Option<Box<Rejection>>,
}

impl Grounds {
    /// Grounds for a message without a statement.
    pub(super) const fn none() -> Self {
        Self {
            basis: Basis::NotRequired,
            observed: None,
        }
    }

    /// Notes that the transaction has failed, so the server executes nothing of the rest.
    pub(super) const fn nothing_runs(&mut self) {
        self.basis = Basis::FailedTransaction;
    }

    /// Permit for a message whose statements have all passed.
    pub(super) fn admitted(self, message: Header) -> Admitted {
        Admitted {
            permit: Permit::new(message, self.basis),
            observed: self.observed,
        }
    }
}
