//! The promises, and what a run has seen of them.

use std::collections::BTreeMap;

use pgpalisade_authority::{Rank, Scope};

/// A promise that a run has broken.
pub(super) type Broken = &'static str;

pub(super) const LATE_COMMIT: Broken = "G1";
pub(super) const LATE_SIGHT: Broken = "G2";
pub(super) const SELF_FENCED: Broken = "G5, a session at the mark is refused";
pub(super) const CURRENT_ENDED: Broken = "G5, a session at the mark is ended";
pub(super) const NOT_IN_TIME: Broken = "G6";
pub(super) const STRANGER_ENDED: Broken = "an unrelated session is ended";
pub(super) const STRANGER_AWAITED: Broken = "a takeover waits for an unrelated session";
pub(super) const STRANGER_REGISTERED: Broken = "another session is registered";
pub(super) const BELOW_REGISTRATION: Broken = "it writes below its registration";
pub(super) const TOKEN_SHARED: Broken = "two hold one token";
pub(super) const REFUSED_BY_ITSELF: Broken = "a take is refused by its own token";
pub(super) const OBSERVED_ENDED: Broken = "observing ends a session";
pub(super) const REPAIRED_ADMITTED: Broken = "a token from before a repair is admitted";
pub(super) const NOT_REGISTERED: Broken = "a living session is not on the register";
pub(super) const WRONG_KEY: Broken = "a client gets a connection of another token";
pub(super) const READER_ENDED: Broken =
    "a takeover ends the connection of a client without a token";
pub(super) const STUCK: Broken = "a client waits, or a connection stays";
pub(super) const STAYS_REGISTERED: Broken = "an ended session stays on the register";

/// What the promises have come to owe.
#[derive(Default)]
pub(super) struct Truth {
    /// Highest rank that was answered with success, by scope and start of the server: no lower one commits there.
    owed: BTreeMap<(Scope, i64), Rank>,
    /// The same by repairs.
    repaired: BTreeMap<(Scope, i64), Rank>,
    /// The take that was answered with each rank: session, and number.
    given: BTreeMap<(Scope, Rank), (u64, u64)>,
    /// Ranks that were answered after the witness had them.
    witnessed: BTreeMap<Scope, Rank>,
    pub(super) granted: u64,
}

impl Truth {
    pub(super) fn owe(&mut self, scope: &Scope, server: i64, rank: Rank) {
        let owed = self.owed.entry((scope.clone(), server)).or_insert(rank);
        *owed = rank.max(*owed);
    }

    pub(super) fn repair(&mut self, scope: &Scope, server: i64, rank: Rank) {
        self.repaired.insert((scope.clone(), server), rank);
    }

    /// A session from before a repair may be moved up by a late message. It is no late one if its token is not lower.
    pub(super) fn is_late(&self, scope: &Scope, server: i64, rank: Rank) -> bool {
        let key = (scope.clone(), server);
        let is_lower = |owed: &Rank| rank < *owed && rank.token < owed.token;
        self.owed.get(&key).is_some_and(is_lower)
            || self
                .repaired
                .get(&key)
                .is_some_and(|owed| rank.incarnation < owed.incarnation)
    }

    /// While a policy only observes, nothing is promised.
    pub(super) fn waive(&mut self) {
        self.owed.clear();
        self.repaired.clear();
    }

    pub(super) fn witness(&mut self, scope: &Scope, rank: Rank) {
        let witnessed = self.witnessed.entry(scope.clone()).or_insert(rank);
        *witnessed = rank.max(*witnessed);
    }

    /// Whether the witness has all that is owed.
    pub(super) fn is_witnessed(&self) -> bool {
        let mut owed = self.owed.iter();
        owed.all(|((scope, _), owed)| self.witnessed.get(scope) >= Some(owed))
    }

    /// Whether one of these marks is lower than the witness says.
    pub(super) fn is_forgotten(&self, rank: impl Fn(&Scope) -> Option<Rank>) -> bool {
        let mut all = self.witnessed.iter();
        all.any(|(scope, witnessed)| rank(scope) < Some(*witnessed))
    }

    /// Notes a take that was answered with success, and says whether another has the token.
    pub(super) fn is_shared(&mut self, scope: &Scope, rank: Rank, take: (u64, u64)) -> bool {
        let given = self.given.insert((scope.clone(), rank), take);
        given.is_some_and(|given| given != take)
    }
}
