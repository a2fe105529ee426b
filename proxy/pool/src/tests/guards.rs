//! Rules that the pool relies on. A run can do without any one of them: the driver then hides from the pool what the
//! rule judges by, or does not follow its answer.

use super::promises::*;

/// A run without a guard.
pub(super) struct Without {
    pub(super) guard: Guard,
    /// The promise that breaks. No other counts.
    pub(super) breaks: Broken,
    /// A seed that shows it.
    pub(super) seed: u64,
}

macro_rules! guards {
    ($($(#[doc = $text:literal])* $name:ident: $breaks:expr, $seed:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Guard { $($(#[doc = $text])* $name,)* }

        impl Guard {
            pub(super) const ALL: &[Without] = &[$(Without {
                guard: Self::$name,
                breaks: $breaks,
                seed: $seed,
            },)*];
        }
    };
}

guards! {
    // Keys
    /// The login is part of the key.
    LoginTold: OTHER_LOGIN, 0;
    /// The tokens are.
    TokensTold: OTHER_ACCESS, 2;
    /// A login says that PostgreSQL is to decide.
    NewTold: USED, 1;
    /// A session says what it has registered.
    RegistrationTold: OTHER_ACCESS, 2;
    /// A session closes a backend whose registration ended unclear.
    UnclearClosed: UNCLEAR, 2;
    // Lending
    /// A client begins with a reset if it is told so.
    ResetFirst: LEAK, 0;
    /// A reset that was ordered is answered before the next client has the backend.
    ResetAwaited: LEAK, 2;
    /// The driver says that something may be left.
    ResidueTold: LEAK, 0;
    /// Backends reset once their client has left.
    LeftTold: LINGERS, 7;
    /// Waiters that left are forgotten.
    WaiterLeftTold: NOT_WAITING, 2;
    /// Ended backends are forgotten.
    EndedTold: DEAD, 2;
    /// Events of a backend that is gone change nothing.
    NumbersNew: TWO_OWNERS, 1;
    // Limits
    BudgetAsked: OVER_BUDGET, 0;
    LoginLimit: OVER_LOGIN, 1;
    PinAsked: OVER_PINNED, 5;
    /// Some backends stay for clients with tokens.
    Leaders: RESERVE, 0;
    /// A pause follows a failed opening.
    FailureTold: HAMMERS, 0;
    /// Time passes.
    TickTold: ENDLESS, 8;
    /// A long wait makes way.
    Patience: STARVED, 39;
}
