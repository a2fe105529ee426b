//! Rules that the protocol relies on. A run can do without any one of them: the code's rule then gets what hides its
//! reason, or its result is not followed.

use super::promises::*;
use super::weather::Weather;

/// A run without a guard.
pub(super) struct Without {
    pub(super) guard: Guard,
    /// What the guard says.
    pub(super) text: &'static str,
    /// The promise that breaks. No other counts.
    pub(super) breaks: Broken,
    pub(super) weather: &'static [Weather],
}

/// Rule that a run can do without, what it says, and what breaks.
macro_rules! guards {
    ($($name:ident: $text:literal, $breaks:expr, [$($weather:ident),*];)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Guard { $($name,)* }

        impl Guard {
            pub(super) const ALL: &[Without] = &[$(Without {
                guard: Self::$name,
                text: $text,
                breaks: $breaks,
                weather: &[$(Weather::$weather),*],
            },)*];
        }
    };
}

guards! {
    // `barrier`
    WaitUntilGone: "waiting until the old sessions are gone", LATE_COMMIT, [];
    BarrierStays: "a barrier that reaches another server than its takeover's gives up", LATE_COMMIT, [Move];
    EndsMore: "sessions that register below a running barrier are ended too", LATE_COMMIT, [Reload];
    TellsAgain: "telling those that stay once more to end", NOT_IN_TIME, [];
    // `reaper`
    RecordsThenLook: "reading the records before looking, in the reaper", LATE_COMMIT, [];
    ReaperAsksForPostmaster:
        "the reaper forgets nobody if another server is on record than it looks at", LATE_COMMIT, [Move];
    PostmasterAfterRecords: "it checks that after reading the records", NOT_REGISTERED, [Move];
    // `epoch`
    EpochRises: "the epoch is above the one that was read", LATE_COMMIT, [Restore];
    EpochWitnessed: "the epoch is written to the witness", LATE_COMMIT, [Restore];
    // `plan`
    JoinersWait: "a session that joins the mark waits for its barrier too", LATE_COMMIT, [];
    CacheRisesFirst: "raising the cache before the session is bound", LATE_COMMIT, [];
    ObserveEndsNobody: "a declaration that is only observed passes no barrier", OBSERVED_ENDED, [Reload];
    ObservedRegister: "registering a stale session whose declaration is only observed", LATE_COMMIT, [Reload];
    WitnessFirst: "the witness has the mark before the answer", LATE_COMMIT, [Restore];
    IncarnationChecked: "looking for a repair after the barrier", REPAIRED_ADMITTED, [Repair];
    // `sessions`
    TerminateByStart: "the start of a backend beside its pid, in `pg_terminate_backend`", STRANGER_ENDED, [Outsider];
    LookByStart: "the same, in the looks", STRANGER_AWAITED, [Outsider];
    IdentityProven: "the session shows a trace before it is registered", STRANGER_REGISTERED, [Outsider];
    // The authority
    RegisterFirst: "registering before admitting", LATE_COMMIT, [];
    RecordsByStart: "the start of a backend in the records", LATE_COMMIT, [Outsider];
    NoExpiry: "records never expire", LATE_COMMIT, [];
    DecideByWriting: "deciding in the step that writes (instead: by a read, which may lag)", LATE_COMMIT, [];
    DrainedForTheMark: "marking as drained only for the token that is the mark", LATE_COMMIT, [];
    DrainedLooks: "marking as drained only if no lower record is left", LATE_COMMIT, [Reload];
    ObservedUndrain: "not counting the scope as drained once a stale session is registered", LATE_COMMIT, [Reload];
    PostmasterOnRecord: "one postmaster on record, and no declaration for another", LATE_COMMIT, [Move];
    PostmasterOnlyRises: "never replacing a later postmaster by an earlier one", LATE_COMMIT, [Move];
    TakeCompares: "a take raises the mark only from the one that was read", TOKEN_SHARED, [];
    TakeIsRecognised: "a take whose answer was lost finds its own", REFUSED_BY_ITSELF, [];
    // `witness` and `recover`
    EpochCompared: "comparing an epoch beside the marks", LATE_COMMIT, [Restore];
    RecoverEndsAll: "a recovery ends every session first", LATE_COMMIT, [Restore];
    // The proxy and its sessions
    ReleaseQuietOnly: "nothing in flight before a record is released", LATE_COMMIT, [];
    ReleaseEndedOnly: "releasing only sessions that have ended, because a release may come late", LATE_COMMIT, [];
    CacheOnlyRefuses: "the cache never admits", LATE_COMMIT, [];
    CacheNotAhead: "raising the cache only after the authority's answer", SELF_FENCED, [];
    RefusalsConfirmed: "what the cache refuses is looked up in the authority", NOT_IN_TIME, [Repair];
    WritesDoNotAsk: "a bound session's writes do not ask the authority", SELF_FENCED, [Outage];
    UnansweredEnds: "an unanswered declaration ends a session with a lower token", BELOW_REGISTRATION, [];
    TakeIsNumbered: "what the session takes after a success is another take", TOKEN_SHARED, [];
    // Not kept by the code
    EndedMovers: "a session that moves up in a takeover is spared (**not covered**)", CURRENT_ENDED, [];
    ObservedRises:
        "a session that is only observed goes back to no lower token (**not covered**)", LATE_COMMIT, [Reload];
    ObservedAnswered: "observed declarations are answered (**not covered**)", LATE_COMMIT, [Reload];
}
