//! Rules that the protocol relies on, each with a name. The model can run without any one of them.

/// A rule of the protocol that can be disabled. Each branch that asks [`crate::world::Fence::keeps`] says what the
/// code would do without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// A takeover that has terminated the old sessions looks until they are gone. `Drain::on_alive`.
    WaitUntilGone,
    /// A session is on the register before it is admitted. `Records::declare`.
    RegisterFirst,
    /// `sessions::terminate` matches on the start as well as on the pid.
    TerminateByStart,
    /// `sessions::alive` matches on the start as well as on the pid.
    LookByStart,
    /// Records of the register are keyed by (pid, start). `tables::SESSIONS`.
    RecordsByStart,
    /// A record is removed once the session was seen to be gone, never because of its age.
    NoExpiry,
    /// The authority decides in the step that writes. A read may be stale.
    DecideByWriting,
    /// `reaper::Round` reads the records, then looks.
    RecordsThenLook,
    /// `Relay::part` removes a record only if nothing was in flight.
    ReleaseQuietOnly,
    /// Only `Relay::part` removes a session's record, after the session has ended. "Gone" then stays true, however
    /// late the message arrives.
    ReleaseEndedOnly,
    /// `Takeover::declare`: the cached mark refuses, and never admits.
    CacheOnlyRefuses,
    /// The cached mark rises after the authority's answer, not before it.
    CacheNotAhead,
    /// `Inner::declare` raises the cached mark before the session is bound.
    CacheRisesFirst,
    /// A write of a bound session checks the cached mark, not the authority.
    WritesDoNotAsk,
    /// `Records::drained` marks the scope only if the token is still the mark.
    DrainedForTheMark,
    /// `Records::drained` looks for lower records before it marks the scope.
    DrainedLooks,
    /// `Takeover::identify` proves that the pid belongs to the session that asked, not to a later one.
    /// `Session::leave_trace`.
    IdentityProven,
    /// A session whose declaration got no answer does not continue under a lower token: the authority may have moved
    /// it up, or may do so later. `Session::end_unanswered`.
    UnansweredEnds,
    /// Nor does it declare a lower token afterwards. `unanswered` in `session/src/tokens.rs`.
    UnansweredIsNoted,
    /// `rule::declare` registers a stale session, whose declaration is only observed, at its own token.
    ObservedRegister,
    /// `rule::declare`: the scope then no longer counts as drained.
    ObservedUndrain,
    /// `rule::declare` refuses a session of another postmaster than the one on record.
    PostmasterOnRecord,
    /// `Cluster::follows`: an earlier postmaster never replaces a later one.
    PostmasterOnlyRises,
    /// `reaper::Round` removes no record if the postmaster on record is not the one that it looks at.
    ReaperAsksForPostmaster,
    /// It checks that after reading the records.
    PostmasterAfterRecords,
    /// `Drain::on_alive`: a look at another postmaster than the takeover's proves nothing. `ControlError::Moved`.
    BarrierStays,
    /// `witness::compare` refuses an authority whose epoch is behind the cluster's. `epoch::Raise`.
    EpochCompared,
    /// `Recovery::perform` ends every session of the cluster first.
    RecoverEndsAll,
    /// `rule::declare`: a take raises the mark only from the one that it names.
    TakeCompares,
    /// `rule::declare`: a take whose answer was lost recognizes the mark as its own. `TakeId`.
    TakeIsRecognised,
    /// `Session::take_number`: a session's next take is a different one.
    TakeIsNumbered,
}
