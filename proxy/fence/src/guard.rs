//! What keeps a session that may not write from writing: a read-only transaction.

use std::fmt;

use pgpalisade_policies::{Access, Chain, CommitsInside, Control, Statement};

/// Why PostgreSQL's read-only mode is not sure to keep a statement from writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unguarded {
    /// What ran in an earlier transaction of the same request cycle may have switched it off.
    TransactionEnded,
    /// The session could write when the transaction began.
    BegunOtherwise,
    /// The transaction could write when it began.
    TokenLaidDown,
    /// The text is sent to a session that may write from its first statement on.
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

/// What the open transaction may do, or the next one if none is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionAccess {
    /// It begins read-only, because of the guard. Nothing makes it read-write again, no savepoint and no chain.
    Guarded,
    /// The same, and the client has asked for a read-only transaction itself.
    Asked,
    /// It may be read-write.
    Open,
}

/// Whether a transaction has ended since the last ReadyForQuery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    No,
    Yes,
}

/// What keeps a session that may not write from writing, where the next statement runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    transaction: TransactionAccess,
    ended: Ended,
}

impl Guard {
    /// A read-only transaction, as the server has confirmed it.
    pub const SURE: Self = Self {
        transaction: TransactionAccess::Guarded,
        ended: Ended::No,
    };
    /// Nothing is known.
    pub const IN_DOUBT: Self = Self {
        transaction: TransactionAccess::Open,
        ended: Ended::No,
    };

    /// Why the session may be able to write, if it may. After the end of a transaction that is so, whatever ran before:
    /// COMMIT runs queries of its own, and what the default is then the server tells only with ReadyForQuery.
    #[inline]
    #[must_use]
    pub const fn in_doubt(self) -> Option<Unguarded> {
        match (self.ended, self.transaction) {
            (Ended::Yes, _) => Some(Unguarded::TransactionEnded),
            (Ended::No, TransactionAccess::Open) => Some(Unguarded::BegunOtherwise),
            (Ended::No, TransactionAccess::Guarded | TransactionAccess::Asked) => None,
        }
    }

    /// What the open transaction may do.
    #[inline]
    #[must_use]
    pub const fn transaction(self) -> TransactionAccess {
        self.transaction
    }

    /// The same guard, of a transaction that may do this.
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
            ended: Ended::No,
            ..self
        }
    }

    /// The guard after a statement.
    #[inline]
    #[must_use]
    pub fn after(self, statement: &Statement) -> Self {
        if statement.commits_inside == CommitsInside::Possibly {
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
                    ended: Ended::Yes,
                    ..self
                }
            }
            // DISCARD ALL is committed at once, in a pipeline too.
            Control::Commit { .. }
            | Control::Rollback { .. }
            | Control::PrepareTransaction
            | Control::DiscardAll => Self {
                transaction: TransactionAccess::Open,
                ended: Ended::Yes,
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
