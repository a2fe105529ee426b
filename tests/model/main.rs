//! A model of the takeover protocol, small enough to try every order of its steps.
//!
//! To learn the protocol from it: [`world`] is the state; [`step`] lists the possible steps, with the code that each
//! one models. [`session`] and [`takeover`] define what a step does, [`registry`] what the authority does.
//! [`promises`] is what must hold, [`scenes`] the participants. Then read the tests here: all promises hold in every
//! scene, and [`guards`] lists the rules. Each rule is disabled once to see which promise breaks without it.
//!
//! A paused proxy needs no step of its own: its steps are simply not taken for a while. Each step is atomic, like the
//! real one: a step of the authority, one statement on the control connection, a turn of one task without a wait.
//!
//! Simplifications: one scope; writes are commits, and a transaction has no inner statements; a barrier that was
//! given up takes its waiting declarations with it; a killed proxy does not come back, another serves instead; one
//! message at a time is duplicated; the epochs of authority and witness rise in one step, and no restore is quick
//! enough to fall between a registration and that step. Left out: losses of a failover; the sessions on another
//! server that the authority adds to a barrier's list, which only observing does; prepared transactions,
//! classification, wire messages. Durations and termination are not modelled: of G6 only "nobody else is waited for"
//! is here.
//!
//! Every test prints its number of states: `cargo nextest run -p pgpalisade-tests --test model --no-capture`

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod guards;
mod promises;
mod registry;
mod restore;
mod scenes;
mod session;
mod step;
mod takeover;
mod world;

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model, Property};

use guards::Guard;
use promises::{
    CURRENT_NOT_ENDED, NO_LATE_COMMIT, NO_LATE_SIGHT, NO_TOKEN_SHARED, NOT_REFUSED_BY_ITSELF,
    NOT_SELF_FENCED, STRANGERS_NOT_AWAITED, STRANGERS_SPARED,
};
use scenes::{
    COPIED, LATE_MESSAGES, MOVERS, OBSERVED, OBSERVED_UNHEARD, REPLACED, RESTORED, REUSED_PIDS,
    TAKERS, THREE_PROXIES, THREE_TOKENS, TWO_PROXIES,
};
use step::Step;
use world::{EndedMovers, Fence, Scene, World};

/// The model as the checker takes it.
struct Play {
    fence: Fence,
    steps: Vec<Step>,
}

impl Model for Play {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.fence)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        // Ends a run at its first broken promise.
        if world.broken.is_none() {
            steps.extend_from_slice(&self.steps);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        step.take(&self.fence, world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = promises::promises();
        // A run without a guard only looks for broken promises.
        if self.fence.without.is_none() {
            let reaches = self.fence.scene.reaches.iter();
            all.extend(reaches.map(|(name, holds)| Property::sometimes(name, *holds)));
        }
        all
    }
}

impl Fence {
    fn checker(self) -> stateright::CheckerBuilder<Play> {
        let steps = Step::all(&self);
        Play { fence: self, steps }.checker()
    }

    /// Asserts that every reachable state keeps every promise, and that the scene reaches its situations.
    #[track_caller]
    fn holds(self) {
        let checker = self.checker().spawn_bfs().join();
        let (scene, states) = (self.scene.name, checker.unique_state_count());
        let depth = checker.max_depth();
        println!("{scene}: {states} states, at most {depth} steps deep");
        checker.assert_properties();
    }

    /// Asserts that some run breaks this promise.
    #[track_caller]
    fn breaks(self, promise: &'static str) {
        let found = HasDiscoveries::AnyOf(BTreeSet::from([promise]));
        let checker = self.checker().finish_when(found).spawn_bfs().join();
        let Some(path) = checker.discovery(promise) else {
            let states = checker.unique_state_count();
            panic!(
                "{:?} is out, and nothing breaks in {states} states: {promise}",
                self.without
            );
        };
        let (scene, states) = (self.scene.name, checker.unique_state_count());
        let steps = path.into_actions();
        println!("{scene} without {:?} breaks \"{promise}\"", self.without);
        println!("{states} states seen, {} steps:", steps.len());
        steps.iter().for_each(|step| println!("    {step:?}"));
    }
}

/// The protocol with all guards.
fn with_all(scene: Scene) -> Fence {
    Fence {
        scene,
        without: None,
        ended_movers: EndedMovers::Counted,
    }
}

fn without(guard: Guard, scene: Scene) -> Fence {
    Fence {
        without: Some(guard),
        ..with_all(scene)
    }
}

/// See [`a_session_that_moves_up_may_be_ended`].
fn tolerant(fence: Fence) -> Fence {
    Fence {
        ended_movers: EndedMovers::Tolerated,
        ..fence
    }
}

#[test]
fn two_proxies() {
    with_all(TWO_PROXIES).holds();
}

#[test]
fn three_proxies() {
    with_all(THREE_PROXIES).holds();
}

#[test]
fn three_tokens() {
    with_all(THREE_TOKENS).holds();
}

#[test]
fn reused_pids() {
    with_all(REUSED_PIDS).holds();
}

#[test]
fn movers() {
    tolerant(with_all(MOVERS)).holds();
}

/// Not covered, as `docs/guarantee.md` says. The design moves a session from a lower token to the new one instead of
/// ending it. Another session's takeover may have listed it before the move: it is terminated all the same, after its
/// own declaration succeeded. No forbidden commit results.
#[test]
fn a_session_that_moves_up_may_be_ended() {
    with_all(MOVERS).breaks(CURRENT_NOT_ENDED);
}

#[test]
fn late_messages() {
    tolerant(with_all(LATE_MESSAGES)).holds();
}

#[test]
fn observed() {
    with_all(OBSERVED).holds();
}

#[test]
fn copied_cluster() {
    with_all(COPIED).holds();
}

/// Not covered, as `docs/guarantee.md` says. An observed declaration without an answer refuses nothing: the session
/// writes, and is on no register. An enforced takeover spares its work in flight. Registering it before the change
/// would not help, since the authority may be down then too. Ending it would not help either: its backend may commit
/// first, and nobody looks for it.
#[test]
fn an_observed_declaration_without_an_answer() {
    with_all(OBSERVED_UNHEARD).breaks(NO_LATE_COMMIT);
}

#[test]
fn replaced_server() {
    with_all(REPLACED).holds();
}

#[test]
fn restored_authority() {
    with_all(RESTORED).holds();
}

#[test]
fn takers() {
    tolerant(with_all(TAKERS)).holds();
}

/// Both declare the token after the mark that they have read, as if they had counted it themselves.
#[test]
fn taking_without_a_comparison() {
    tolerant(without(Guard::TakeCompares, TAKERS)).breaks(NO_TOKEN_SHARED);
}

/// The authority has stored the take, the answer is lost, and the same session asks again.
#[test]
fn taking_again_as_somebody_else() {
    tolerant(without(Guard::TakeIsRecognised, TAKERS)).breaks(NOT_REFUSED_BY_ITSELF);
}

/// A pooler lends the session to another client, which has read the same mark.
#[test]
fn taking_as_the_client_before() {
    tolerant(without(Guard::TakeIsNumbered, TAKERS)).breaks(NO_TOKEN_SHARED);
}

#[test]
fn terminating_without_waiting() {
    without(Guard::WaitUntilGone, TWO_PROXIES).breaks(NO_LATE_COMMIT);
}

/// The same, on a path that keeps G1: the old commit is durable before the answer, and visible after it.
#[test]
fn terminating_without_waiting_surprises_a_snapshot() {
    without(Guard::WaitUntilGone, TWO_PROXIES).breaks(NO_LATE_SIGHT);
}

#[test]
fn registering_after_admission() {
    without(Guard::RegisterFirst, TWO_PROXIES).breaks(NO_LATE_COMMIT);
}

/// A new session has the pid of a registered session that is gone, and is ended in its place.
#[test]
fn terminating_by_pid_alone() {
    without(Guard::TerminateByStart, TWO_PROXIES).breaks(STRANGERS_SPARED);
}

/// No write gets through: looking by pid alone waits for too many sessions, never for too few. Since `terminate`
/// matches on both, nothing ends the other session, and the takeover waits for it until its timeout.
#[test]
fn looking_by_pid_alone() {
    without(Guard::LookByStart, TWO_PROXIES).breaks(STRANGERS_NOT_AWAITED);
}

/// Removing the record of a session that is gone also removes that of a living session with the same pid. The next
/// takeover does not know it.
#[test]
fn records_by_pid_alone() {
    without(Guard::RecordsByStart, TWO_PROXIES).breaks(NO_LATE_COMMIT);
}

#[test]
fn records_that_expire() {
    without(Guard::NoExpiry, TWO_PROXIES).breaks(NO_LATE_COMMIT);
}

#[test]
fn deciding_by_a_stale_read() {
    without(Guard::DecideByWriting, TWO_PROXIES).breaks(NO_LATE_COMMIT);
}

#[test]
fn a_reaper_that_looks_first() {
    without(Guard::RecordsThenLook, TWO_PROXIES).breaks(NO_LATE_COMMIT);
}

/// A close by the server does not help here: a broken connection looks the same, and its backend goes on.
#[test]
fn releasing_with_work_in_flight() {
    without(Guard::ReleaseQuietOnly, TWO_PROXIES).breaks(NO_LATE_COMMIT);
}

/// A session clears its token and sets it again. If it were released in between, as an ended one is, a late copy of
/// the release would remove the record of a living session.
#[test]
fn releasing_a_session_that_lives() {
    tolerant(without(Guard::ReleaseEndedOnly, LATE_MESSAGES)).breaks(NO_LATE_COMMIT);
}

/// It was stale, so the authority did not register it, and its statement goes on while the policy is enforced.
#[test]
fn observed_sessions_that_are_on_no_register() {
    without(Guard::ObservedRegister, OBSERVED).breaks(NO_LATE_COMMIT);
}

/// It is on the register below a mark that counts as drained, where nobody looks any more.
#[test]
fn observed_sessions_below_a_drained_mark() {
    without(Guard::ObservedUndrain, OBSERVED).breaks(NO_LATE_COMMIT);
}

/// The copy's proxy sees none of the cluster's sessions, and removes their records. If the authority continues to
/// serve both, the next takeover on the cluster spares them.
#[test]
fn a_copy_beside_the_cluster() {
    without(Guard::PostmasterOnRecord, COPIED).breaks(NO_LATE_COMMIT);
}

/// The same, once the cluster has returned.
#[test]
fn a_cluster_that_comes_back_after_its_copy() {
    without(Guard::PostmasterOnlyRises, COPIED).breaks(NO_LATE_COMMIT);
}

/// Its proxy has not noticed the new server yet, and does not find the registered sessions on the old one.
#[test]
fn a_reaper_on_a_replaced_server() {
    without(Guard::ReaperAsksForPostmaster, REPLACED).breaks(NO_LATE_COMMIT);
}

/// The old server was on record when the reaper asked, and the new one's sessions are there when it reads.
#[test]
fn a_reaper_that_asks_for_the_server_first() {
    without(Guard::PostmasterAfterRecords, REPLACED).breaks(NO_LATE_COMMIT);
}

/// A barrier that looks for the old server's sessions on the new one finds none.
#[test]
fn a_barrier_that_is_led_elsewhere() {
    without(Guard::BarrierStays, REPLACED).breaks(NO_LATE_COMMIT);
}

/// The marks are equal, but a session that joined at the mark since the backup is missing.
#[test]
fn comparing_nothing_but_marks() {
    without(Guard::EpochCompared, RESTORED).breaks(NO_LATE_COMMIT);
}

/// A recovery raises mark and epoch. It cannot bring back the sessions that the authority has forgotten.
#[test]
fn recovering_while_sessions_live() {
    without(Guard::RecoverEndsAll, RESTORED).breaks(NO_LATE_COMMIT);
}

/// The cached mark rises before the barrier, so a second session of the new holder would not wait for it, nor be on
/// the register.
#[test]
fn a_cache_that_admits() {
    without(Guard::CacheOnlyRefuses, REUSED_PIDS).breaks(NO_LATE_COMMIT);
}

/// A takeover was only requested and the mark has not risen, but the same proxy refuses the holder of the mark.
#[test]
fn a_cache_ahead_of_the_authority() {
    without(Guard::CacheNotAhead, THREE_TOKENS).breaks(NOT_SELF_FENCED);
}

/// A session that has moved up and falls back is on the register with the higher token, so no takeover of that token
/// ends it. Only its own proxy's cache stops its writes: G1 relies on the cache only here.
#[test]
fn a_cache_that_does_not_rise_before_the_binding() {
    tolerant(without(Guard::CacheRisesFirst, MOVERS)).breaks(NO_LATE_COMMIT);
}

#[test]
fn writes_that_ask_the_authority() {
    tolerant(without(Guard::WritesDoNotAsk, MOVERS)).breaks(NOT_SELF_FENCED);
}

/// A barrier that was overtaken marks the higher token, whose old sessions still exist.
#[test]
fn draining_another_mark() {
    without(Guard::DrainedForTheMark, THREE_TOKENS).breaks(NO_LATE_COMMIT);
}

/// Nothing breaks. No lower session can register once the mark has risen, so a declaration's list is complete. A
/// barrier reports only when all of it are gone. The check in `Records::drained` guards against a faulty proxy, not
/// against anything in the protocol.
#[test]
fn draining_without_a_look_at_the_records() {
    without(Guard::DrainedLooks, THREE_TOKENS).holds();
    tolerant(without(Guard::DrainedLooks, MOVERS)).holds();
}

/// The proxy knows its backend by the pid from the login, and looks up its start when the client declares. A session
/// that ended in between may have left its pid to another one. Without a sign of life after the look, that one is
/// registered in its place, with a token that it does not have. The takeover of that token then spares it.
#[test]
fn a_declaration_for_whoever_has_the_pid() {
    without(Guard::IdentityProven, REUSED_PIDS).breaks(NO_LATE_COMMIT);
}

/// A session with token 1 declares 2, and the answer is lost or late. If it continued under token 1 while the
/// register has it at 2, another session's takeover with 2 would spare it. So it is ended.
#[test]
fn going_on_after_a_declaration_without_an_answer() {
    tolerant(without(Guard::UnansweredEnds, MOVERS)).breaks(NO_LATE_COMMIT);
}

/// The same without a token: the session declares 2, which is late, then 1, and then the authority accepts the 2.
#[test]
fn declaring_less_after_a_declaration_without_an_answer() {
    tolerant(without(Guard::UnansweredIsNoted, LATE_MESSAGES)).breaks(NO_LATE_COMMIT);
}
