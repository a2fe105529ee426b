//! Read-only guard: the read-only transaction in which a session may not write.

use std::fmt;

use pgpalisade_policies::{Access, Chain, Control, Statement};

/// Reason why read-only mode is not sure to keep a statement from writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unguarded {
    /// Something in an earlier transaction of the same request cycle may have switched it off.
    TransactionEnded,
    /// The session could write when the transaction began.
    BegunOtherwise,
    /// The transaction began read-write, and its token was cleared.
    TokenLaidDown,
    /// The token is declared later in the text, so the text runs in a session that may write from the start.
    TokenDeclaredLater,
}

impl fmt::Display for Unguarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TransactionEnded => {
                "a transaction or savepoint ended earlier in the same query or pipeline, so read-only mode is in doubt"
            }
            Self::BegunOtherwise => {
                "the session could write when this transaction began, so the transaction is not read-only: \
                 end it first"
            }
            Self::TokenLaidDown => {
                "the token was cleared earlier in the same query, so the transaction is not read-only"
            }
            Self::TokenDeclaredLater => {
                "the token is declared later in the same query, so the transaction is not read-only"
            }
        })
    }
}

/// Access mode of the open transaction, or of the next one if none is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionAccess {
    /// Read-only because of the guard. Nothing makes it read-write again, neither a savepoint nor a chain.
    Guarded,
    /// The same, but the client itself has asked for read-only.
    Asked,
    /// It may be read-write.
    Open,
}

/// State of the guard when the next statement runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    transaction: TransactionAccess,
    /// Whether a transaction has ended since the last ReadyForQuery.
    has_ended: bool,
}

impl Guard {
    /// A read-only transaction, confirmed by the server.
    pub const SURE: Self = Self {
        transaction: TransactionAccess::Guarded,
        has_ended: false,
    };
    /// Nothing is known.
    pub const IN_DOUBT: Self = Self {
        transaction: TransactionAccess::Open,
        has_ended: false,
    };

    /// Reason why the session may be able to write, if it may. After the end of a transaction it always may: COMMIT
    /// runs queries of its own, and the server reports the default only with ReadyForQuery.
    #[inline]
    #[must_use]
    pub const fn in_doubt(self) -> Option<Unguarded> {
        match (self.has_ended, self.transaction) {
            (true, _) => Some(Unguarded::TransactionEnded),
            (false, TransactionAccess::Open) => Some(Unguarded::BegunOtherwise),
            (false, TransactionAccess::Guarded | TransactionAccess::Asked) => None,
        }
    }

    /// Access mode of the open transaction.
    #[inline]
    #[must_use]
    pub const fn transaction(self) -> TransactionAccess {
        self.transaction
    }

    /// The same guard for a transaction of this access mode.
    #[inline]
    #[must_use]
    pub const fn of(self, transaction: TransactionAccess) -> Self {
        Self {
            transaction,
            ..self
        }
    }

    /// The guard after ReadyForQuery.
    #[inline]
    #[must_use]
    pub const fn answered(self) -> Self {
        Self {
            has_ended: false,
            ..self
        }
    }

    /// The guard after a statement.
    #[inline]
    #[must_use]
    pub fn after(self, statement: &Statement) -> Self {
        if statement.may_commit_inside {
            return Self::IN_DOUBT;
        }
        statement.controls.iter().fold(self, Self::after_control)
    }

    const fn after_control(self, control: &Control) -> Self {
        match control {
            // The next transaction has the modes of the one that has ended.
            // <https://www.postgresql.org/docs/current/sql-commit.html>
            Control::Commit { chain: Chain::Yes } | Control::Rollback { chain: Chain::Yes } => {
                Self {
                    has_ended: true,
                    ..self
                }
            }
            // DISCARD ALL is committed at once, in a pipeline too.
            Control::Commit { .. }
            | Control::Rollback { .. }
            | Control::PrepareTransaction
            | Control::DiscardAll => Self {
                transaction: TransactionAccess::Open,
                has_ended: true,
            },
            Control::Begin {
                access: Some(access),
            }
            | Control::SetTransactionAccess(access) => Self {
                transaction: match (access, self.transaction) {
                    (Access::ReadOnly, TransactionAccess::Guarded) => TransactionAccess::Asked,
                    (Access::ReadOnly, transaction) => transaction,
                    (Access::ReadWrite, _) => TransactionAccess::Open,
                },
                ..self
            },
            _ => self,
        }
    }
}

/// Whether a statement ends a transaction.
#[must_use]
pub const fn ends_transaction(control: &Control) -> bool {
    matches!(
        control,
        Control::Commit { .. } | Control::Rollback { .. } | Control::PrepareTransaction
    )
}

/// Whether the server executes a statement in a failed transaction: all but ROLLBACK TO then do a ROLLBACK, even
/// PREPARE TRANSACTION: <https://www.postgresql.org/docs/current/sql-prepare-transaction.html>
pub(crate) fn runs_if_failed(statement: &Statement) -> bool {
    let ends =
        |control: &Control| ends_transaction(control) || matches!(control, Control::RollbackTo(_));
    // An unread statement may begin with a ROLLBACK.
    statement.is_unread() || statement.controls.iter().any(ends)
}

/// Effect of a statement that ends a failed transaction: its COMMIT is a ROLLBACK.
/// <https://www.postgresql.org/docs/current/sql-commit.html>
pub const fn end_of_failed(control: &Control) -> Option<Control> {
    match control {
        Control::Commit { chain } => Some(Control::Rollback { chain: *chain }),
        Control::PrepareTransaction => Some(Control::Rollback { chain: Chain::No }),
        _ => None,
    }
}
