//! What the protocol leans on, one name for each. The model can be run without any one of them.

/// A rule of the protocol that may be taken out. What the code does without it stands at the branch in the
/// model that asks [`crate::world::Fence::keeps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// A takeover that has told the old sessions to end looks until they are gone. `Barriers::try_end`.
    WaitUntilGone,
    /// A session is on the register before it is admitted. `Tables::declare`.
    RegisterFirst,
    /// `sessions::terminate` matches on the start as well as on the pid.
    TerminateByStart,
    /// `sessions::alive` matches on the start as well as on the pid.
    LookByStart,
    /// The records of the register are kept by (pid, start). `tables::SESSIONS`.
    RecordsByStart,
    /// A record goes when the session was seen to be gone, never because time has passed.
    NoExpiry,
    /// The authority decides in the step that writes. A read may be of yesterday.
    DecideByWriting,
    /// `Reaper::reap` reads the records, then looks.
    RecordsThenLook,
    /// `Relay::run` takes a record off only where nothing was in flight.
    ReleaseQuietOnly,
    /// `Relay::run` is the only place that takes the record of a session off: once the session has ended. Then what
    /// is said of it, that it is gone, stays true, however late it is heard.
    ReleaseEndedOnly,
    /// `Takeover::declare`: the cached mark refuses, and admits nobody.
    CacheOnlyRefuses,
    /// The cached mark rises after the authority's answer, not in the hope of it.
    CacheNotAhead,
    /// `Inner::declare` raises the cached mark before the session is bound.
    CacheRisesFirst,
    /// A write of a bound session asks the cached mark, not the authority.
    WritesDoNotAsk,
    /// `Tables::drained` marks the scope only where the token is still the mark.
    DrainedForTheMark,
    /// `Tables::drained` looks for lower records before it marks the scope.
    DrainedLooks,
    /// What `Takeover::identify` finds under the pid is the session that asked, not one that has the pid by now.
    /// `Session::probe`.
    IdentityProven,
    /// A session whose declaration got no answer does not go on under a lower token: the authority may have moved it
    /// up, or do so later. `Relay::end_unanswered`.
    UnansweredEnds,
    /// Nor does it declare a lower one afterwards. `Relay::unanswered`.
    UnansweredIsNoted,
    /// `Tables::declare`: a stale session whose declaration is only observed is on the register at its own token.
    ObservedRegister,
    /// `Tables::declare`: where that is done, the scope is not drained any more.
    ObservedUndrain,
    /// `Tables::declare` refuses a session of another postmaster than the one on record.
    PostmasterOnRecord,
    /// `Cluster::follows`: a postmaster that began earlier never takes the
    /// place of a later one.
    PostmasterOnlyRises,
    /// `Reaper::reap` forgets nobody where another postmaster is on record than the one that it looks at.
    ReaperAsksForPostmaster,
    /// It asks for that after it has read the records.
    PostmasterAfterRecords,
    /// `Barriers::try_end`: a look at another postmaster than that of the takeover says nothing. `ControlError::Moved`.
    BarrierStays,
    /// `witness::compare` refuses an authority whose epoch is behind the cluster's. `Epoch::raise`.
    EpochCompared,
    /// `Recovery::perform` ends every session of the cluster first.
    RecoverEndsAll,
    /// `MarkRow::judge`: a take raises the mark only from the one that it names.
    TakeCompares,
    /// `MarkRow::judge`: a take whose answer was lost finds that the mark is its own. `TakeId`.
    TakeIsRecognised,
    /// `Granted::take_number`: what a session takes after that is another take.
    TakeIsNumbered,
}
