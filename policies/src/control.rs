//! Effects of a statement on its session.

use std::sync::Arc;

use strum::EnumString;

use crate::allocation::{boxed, counted};
use crate::effects::Effects;
use crate::write_reason::Opaque;

/// The access mode of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// READ ONLY
    ReadOnly,
    /// READ WRITE
    ReadWrite,
}

/// Lifetime of a value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until the session ends (SET, SET SESSION).
    Session,
    /// Until the transaction ends (SET LOCAL).
    Local,
}

/// Whether COMMIT or ROLLBACK begins the next transaction at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// AND CHAIN
    Yes,
    /// AND NO CHAIN, or neither.
    No,
}

/// A setting by which a session declares its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencingVariable {
    /// `fencing.token`
    Token,
    /// `fencing.scope`
    Scope,
}

impl FencingVariable {
    /// Name of the setting.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Token => "fencing.token",
            Self::Scope => "fencing.scope",
        }
    }
}

/// A declaration or SHOW of a `fencing.` setting that does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// No setting of this name exists, although it begins with `fencing.`.
    UnknownSetting(Box<str>),
    /// The setting can be shown but not set.
    ShowOnly(Box<str>),
    /// The value reaches PostgreSQL but declares no token. Either the text does not contain it, or the statement is
    /// neither SET nor a plain SELECT of set_config.
    DoesNotDeclare(FencingVariable),
    /// The text names a `fencing.` setting but was not understood, so its effect is unknown.
    Unreadable(Opaque),
}

/// Subject of a SHOW that the proxy answers, by its name after `fencing.`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString)]
#[strum(serialize_all = "lowercase", ascii_case_insensitive)]
pub enum FencingShow {
    /// `SHOW fencing.token`
    Token,
    /// `SHOW fencing.scope`
    Scope,
    /// `SHOW fencing.mark`
    Mark,
    /// `SHOW fencing.status`
    Status,
    /// `SHOW fencing.history`
    History,
}

/// A setting that reports the access mode. The value that PostgreSQL shows may be the proxy's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessShow {
    /// `SHOW transaction_read_only`
    Transaction,
    /// `SHOW default_transaction_read_only`
    Default,
}

/// Effect of a statement on its session, after PostgreSQL has completed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// BEGIN or START TRANSACTION.
    Begin {
        /// Requested mode; the last one if there are several.
        access: Option<Access>,
    },
    /// COMMIT or END.
    Commit {
        /// Whether AND CHAIN follows.
        chain: Chain,
    },
    /// ROLLBACK or ABORT.
    Rollback {
        /// Whether AND CHAIN follows.
        chain: Chain,
    },
    /// SAVEPOINT name
    Savepoint(Box<str>),
    /// RELEASE SAVEPOINT name
    Release(Box<str>),
    /// ROLLBACK TO SAVEPOINT name
    RollbackTo(Box<str>),
    /// The names of prepared statements may stand for something else afterwards.
    MayChangeNames,
    /// PREPARE TRANSACTION: ends the block; its work stays prepared.
    PrepareTransaction,
    /// The mode of the current transaction: SET TRANSACTION READ .., SET transaction_read_only.
    SetTransactionAccess(Access),
    /// The mode of later transactions: SET default_transaction_read_only, SET SESSION CHARACTERISTICS. SET LOCAL
    /// gives no control: its value ends before a later transaction begins.
    SetDefaultAccess(Access),
    /// A value for a `fencing.` setting: SET, or set_config with literals as the whole of a SELECT.
    SetFencing {
        /// The setting.
        variable: FencingVariable,
        /// The text that PostgreSQL stores, unchecked.
        value: Box<str>,
        /// Lifetime of the value.
        lifetime: Lifetime,
    },
    /// Return to the value at the start of the session: RESET fencing.token, `SET [LOCAL] .. TO DEFAULT`.
    ResetFencing {
        /// The setting.
        variable: FencingVariable,
        /// Lifetime of the value.
        lifetime: Lifetime,
    },
    /// RESET ALL
    ResetAll,
    /// DISCARD ALL, which includes RESET ALL and DEALLOCATE ALL.
    DiscardAll,
    /// RESET default_transaction_read_only, SET .. TO DEFAULT
    ResetDefaultAccess,
    /// A mention of a `fencing.` setting that has no effect.
    Mistake(Mistake),
    /// SHOW of a setting that the proxy answers.
    ShowFencing(FencingShow),
    /// SHOW of a setting that the server answers, but in which the client must see only its own changes.
    ShowAccess(AccessShow),
    /// SQL PREPARE.
    Prepare {
        /// Name as PostgreSQL parses it.
        name: Box<str>,
        /// Effects of executing it.
        effects: Arc<Effects>,
    },
    /// EXECUTE, also inside EXPLAIN. Its class is that of the named statement, or write if the name is unknown.
    Execute {
        /// Name as PostgreSQL parses it.
        name: Box<str>,
    },
    /// FETCH and MOVE, which run a portal, perhaps one that the protocol opened.
    Fetch {
        /// Name as PostgreSQL parses it.
        portal: Box<str>,
    },
    /// DEALLOCATE name
    Deallocate {
        /// Name as PostgreSQL parses it.
        name: Box<str>,
    },
    /// DEALLOCATE ALL
    DeallocateAll,
}

impl Control {
    /// Whether it begins, ends or splits a transaction.
    #[must_use]
    pub fn is_transaction(&self) -> bool {
        matches!(
            self,
            Self::Begin { .. }
                | Self::Commit { .. }
                | Self::Rollback { .. }
                | Self::Savepoint(_)
                | Self::Release(_)
                | Self::RollbackTo(_)
                | Self::PrepareTransaction
        )
    }

    /// Whether it gives a value to `fencing.token`.
    #[must_use]
    pub const fn sets_token(&self) -> bool {
        matches!(
            self,
            Self::SetFencing {
                variable: FencingVariable::Token,
                ..
            }
        )
    }

    /// Whether it is RESET of the token, which brings back that of the connection string.
    #[must_use]
    pub const fn resets_token(&self) -> bool {
        matches!(
            self,
            Self::ResetFencing {
                variable: FencingVariable::Token,
                ..
            }
        )
    }

    /// Whether it may change what the session holds, or shows it.
    #[must_use]
    pub const fn touches_token(&self) -> bool {
        matches!(
            self,
            Self::SetFencing { .. }
                | Self::ResetFencing { .. }
                | Self::ResetAll
                | Self::DiscardAll
                | Self::ShowFencing(_)
        )
    }

    /// Whether a value of the session is gone after it: of settings, or of the token.
    #[must_use]
    pub const fn discards(&self) -> bool {
        matches!(
            self,
            Self::DiscardAll
                | Self::ResetAll
                | Self::SetFencing {
                    lifetime: Lifetime::Session,
                    ..
                }
                | Self::ResetFencing {
                    lifetime: Lifetime::Session,
                    ..
                }
        )
    }

    /// Whether it creates or drops prepared statements.
    #[must_use]
    pub const fn changes_statements(&self) -> bool {
        matches!(
            self,
            Self::Prepare { .. }
                | Self::Deallocate { .. }
                | Self::DeallocateAll
                | Self::DiscardAll
                | Self::MayChangeNames
        )
    }

    /// Whether it gives a value to a `fencing.` setting.
    pub(crate) const fn is_fencing(&self) -> bool {
        matches!(self, Self::SetFencing { .. } | Self::ResetFencing { .. })
    }

    /// Whether it is a declaration, which is accepted before its statement runs.
    #[must_use]
    pub fn gives_token(&self) -> bool {
        let variable = FencingVariable::Token;
        matches!(self, Self::SetFencing { variable: of, value, .. } if *of == variable && !value.trim().is_empty())
    }

    pub(crate) const fn tells_transaction_access(&self) -> bool {
        matches!(self, Self::Begin { .. } | Self::SetTransactionAccess(_))
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Savepoint(name)
            | Self::Release(name)
            | Self::RollbackTo(name)
            | Self::SetFencing { value: name, .. }
            | Self::Execute { name }
            | Self::Fetch { portal: name }
            | Self::Deallocate { name }
            | Self::Mistake(Mistake::UnknownSetting(name) | Mistake::ShowOnly(name)) => {
                boxed(&**name)
            }
            Self::Prepare { name, effects } => {
                boxed(&**name) + counted::<Effects>() + effects.heap_bytes()
            }
            _ => 0,
        }
    }
}
