//! The kinds of refusals, and whether they are carried out.

/// Why the fence refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionKind {
    /// The token is below the mark.
    StaleToken,
    /// The statement needs a token and the session has none.
    NoToken,
    /// The token or scope is not valid, or was never issued.
    InvalidToken,
    /// The authority did not answer, so a new token could not be stored.
    AuthorityUnavailable,
    /// The policy refuses it whatever the token.
    Policy,
    /// Old sessions could not be confirmed gone in time.
    TakeoverIncomplete,
    /// The session is on a primary that a failover has deposed.
    DeposedPrimary,
    /// Others hold the lease that the session has waited for.
    LeaseHeld,
    /// A takeover ended the session; nothing that was open was committed.
    SessionEnded,
    /// A takeover ended the session while a statement was under way that may have been committed.
    OutcomeUnknown,
}

impl RejectionKind {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 10] = [
        Self::StaleToken,
        Self::NoToken,
        Self::InvalidToken,
        Self::AuthorityUnavailable,
        Self::Policy,
        Self::TakeoverIncomplete,
        Self::DeposedPrimary,
        Self::LeaseHeld,
        Self::SessionEnded,
        Self::OutcomeUnknown,
    ];

    /// Its place in [`Self::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StaleToken => "stale_token",
            Self::NoToken => "no_token",
            Self::InvalidToken => "invalid_token",
            Self::AuthorityUnavailable => "authority_unavailable",
            Self::Policy => "policy",
            Self::TakeoverIncomplete => "takeover_incomplete",
            Self::DeposedPrimary => "deposed_primary",
            Self::LeaseHeld => "lease_held",
            Self::SessionEnded => "session_ended",
            Self::OutcomeUnknown => "outcome_unknown",
        }
    }

    /// The SQLSTATE that the client gets.
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

/// What became of the transaction that a session had open when a takeover ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpenTransaction {
    /// None was open.
    None,
    /// Nothing of it was committed.
    RolledBack,
    /// It was being committed when the session ended.
    Unknown,
}

impl OpenTransaction {
    /// The name in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::RolledBack => "rolled_back",
            Self::Unknown => "unknown",
        }
    }
}

/// Whether a refusal was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// It was: the client got the error.
    Refused,
    /// It was only recorded, as a policy in observe mode asks for. The client noticed nothing.
    Observed,
}
