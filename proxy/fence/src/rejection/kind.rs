//! Kinds of refusals, and whether they are enforced.

use strum::{EnumString, IntoStaticStr, VariantArray};

/// Reason for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, EnumString, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum RejectionKind {
    /// The token is below the mark.
    StaleToken,
    /// The statement needs a token and the session has none.
    NoToken,
    /// The token or scope is not valid, or was never issued.
    InvalidToken,
    /// The authority did not answer, so a new token could not be stored.
    AuthorityUnavailable,
    /// The policy refuses it, whatever the token.
    Policy,
    /// Old sessions could not be confirmed gone in time.
    TakeoverIncomplete,
    /// The session is on a primary that a failover has deposed.
    DeposedPrimary,
    /// Another session holds the lease that this one has waited for.
    LeaseHeld,
    /// A takeover ended the session; nothing that was open was committed.
    SessionEnded,
    /// A takeover ended the session while a statement in flight may have been committed.
    OutcomeUnknown,
}

impl RejectionKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Name in records.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// SQLSTATE that the client gets.
    pub const fn sqlstate(self) -> &'static str {
        match self {
            Self::StaleToken | Self::SessionEnded => "PF001",
            Self::NoToken => "PF002",
            Self::InvalidToken => "PF003",
            Self::AuthorityUnavailable => "PF004",
            Self::Policy => "PF005",
            Self::TakeoverIncomplete => "PF006",
            Self::DeposedPrimary => "PF007",
            Self::LeaseHeld => "55P03",
            Self::OutcomeUnknown => "08007",
        }
    }
}

/// Fate of the transaction that a session had open when a takeover ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum OpenTransaction {
    /// None was open.
    None,
    /// Nothing of it was committed.
    RolledBack,
    /// It was being committed when the session ended.
    Unknown,
}

impl OpenTransaction {
    /// Name in records.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Whether a refusal was enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// Enforced: the client got the error.
    Refused,
    /// Only recorded, as a policy in observe mode asks for. The client noticed nothing.
    Observed,
}
