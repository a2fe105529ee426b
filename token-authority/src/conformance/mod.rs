//! Suite of tests that every store must pass. They panic on failure.
//!
//! Scopes and sessions get random names, so the suite can run on a store that is in use or has run it before.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test suite speaks by panicking"
)]

mod abandoned;
mod bounds;
mod clusters;
mod concurrent;
mod generated;
mod history;
mod leases;
mod memory;
mod racing;
mod repairs;
mod scale;
mod stale;
mod takes;
mod watching;

pub use generated::follows_the_rule;
pub use memory::MemoryStore;
pub use scale::{Scale, at_scale};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{
    Authority, AuthorityError, Backend, Cluster, Declaration, DeclareOutcome, Declared, Drained,
    Enrolled, Mark, Registered, Scope, Token,
};

/// Runs all tests. `seed` fixes the schedule of the concurrent ones as far as the threads allow; it is printed.
pub async fn run(authority: Arc<dyn Authority>, seed: u64) {
    let store = authority.as_ref();
    recover(store, &[]).await;
    raises_and_refuses(store).await;
    lists_lower_sessions_until_drained(store).await;
    moves_up_and_never_down(store).await;
    drained_removes_lower_records_only(store).await;
    late_drained_does_not_count(store).await;
    forget_removes_everywhere(store).await;
    removals_that_come_late_remove_nobody_else(store).await;
    stale::sessions_are_registered_where_that_is_wanted(store).await;
    scopes_are_apart(store).await;
    bounds::a_step_that_is_too_long_changes_nothing(store).await;
    takes::follow_the_mark_that_was_read(store).await;
    takes::whatever_the_mark_is(store).await;
    takes::stay_within_their_bounds(store).await;
    takes::made_again_are_the_same(store).await;
    repairs::set_the_mark_in_a_new_incarnation(store).await;
    repairs::are_refused_where_the_scope_is_another_than_seen(store).await;
    repairs::asked_for_again_change_nothing(store).await;
    repairs::recovery_keeps_the_incarnation(store).await;
    history::is_kept_of_each_scope(store).await;
    history::has_one_record_for_all_attempts(store).await;
    leases::have_one_holder(store).await;
    println!("conformance: concurrent parts run with seed {seed}");
    let one = [Arc::clone(&authority)];
    concurrent::raises_see_every_lower_session(&one, seed).await;
    concurrent::schedule_loses_no_session(&one, seed).await;
    takes::at_once_have_one_winner(&one, seed).await;
    takes::at_once_have_a_token_each(&one, seed).await;
    leases::at_once_have_one_winner(&one).await;
    abandoned::calls_leave_nothing_broken(&one, seed).await;
    racing::enrolment_ends_the_cluster_before(&one).await;
    repairs::are_ordered_with_declarations(&one).await;
    repairs::that_race_are_one(&one).await;
    repairs::that_are_abandoned_are_taken_once(&one, seed).await;
    watching::changes_are_told(store, store).await;
    watching::repairs_are_told(store, store).await;
    clusters::old_timelines_are_refused(store).await;
    clusters::a_server_beside_a_later_copy_is_refused(store).await;
    clusters::recovery_lets_no_mark_fall(store).await;
    clusters::recovery_that_comes_late_changes_nothing(store).await;
}

/// Tests for two proxies that share a store: `a` and `b` are two handles on it, opened separately if the store allows
/// it.
pub async fn run_two(a: Arc<dyn Authority>, b: Arc<dyn Authority>, seed: u64) {
    assert_eq!(a.identity(), b.identity(), "two handles on one store");
    recover(a.as_ref(), &[]).await;
    println!("conformance: two handles run with seed {seed}");
    let two = [a, b];
    concurrent::raises_see_every_lower_session(&two, seed).await;
    concurrent::schedule_loses_no_session(&two, seed).await;
    takes::at_once_have_one_winner(&two, seed).await;
    takes::at_once_have_a_token_each(&two, seed).await;
    leases::at_once_have_one_winner(&two).await;
    leases::lapse(&two).await;
    abandoned::calls_leave_nothing_broken(&two, seed).await;
    racing::enrolment_ends_the_cluster_before(&two).await;
    history::loses_none_of_two(&two).await;
    repairs::are_ordered_with_declarations(&two).await;
    repairs::that_race_are_one(&two).await;
    repairs::that_are_abandoned_are_taken_once(&two, seed).await;
    let [a, b] = &two;
    watching::changes_are_told(a.as_ref(), b.as_ref()).await;
    watching::changes_are_told(b.as_ref(), a.as_ref()).await;
    watching::repairs_are_told(a.as_ref(), b.as_ref()).await;
    watching::repairs_are_told(b.as_ref(), a.as_ref()).await;
}

/// Cluster of all declarations.
const CLUSTER: Cluster = Cluster {
    system_identifier: 0xffff_0000_1111_2222,
    timeline: 3,
    postmaster_us: 1_700_000_000_000_000,
};

/// Records [`CLUSTER`], whatever is recorded.
async fn recover(store: &dyn Authority, marks: &[(Scope, Mark)]) {
    let seen = store.cluster().await.expect("cluster answers");
    let recovered = store.recover(seen, CLUSTER, marks).await;
    assert_eq!(recovered, Ok(Enrolled::Accepted));
}

/// A scope without other users.
fn fresh_scope() -> Scope {
    scope(&format!("conformance/{:016x}", rand::random::<u64>()))
}

fn scope(name: &str) -> Scope {
    Scope::new(name).expect("a valid scope")
}

fn token(value: u64) -> Token {
    Token::new(value).expect("a valid token")
}

/// A session without other users.
fn fresh_backend() -> Backend {
    Backend {
        pid: rand::random_range(1..=i32::MAX),
        started_us: rand::random_range(0..1 << 62),
    }
}

async fn declare(store: &dyn Authority, scope: &Scope, value: u64, backend: Backend) -> Declared {
    let declared = declare_on(store, CLUSTER, scope, value, backend).await;
    declared.expect("declare answers")
}

async fn declare_on(
    store: &dyn Authority,
    cluster: Cluster,
    scope: &Scope,
    value: u64,
    backend: Backend,
) -> Result<Declared, AuthorityError> {
    let declaration = Declaration::new(scope, token(value), backend, cluster, "suite");
    store.declare(&declaration).await
}

#[track_caller]
fn accepted(declared: Declared) -> (Mark, DeclareOutcome, Vec<Registered>) {
    match declared {
        Declared::Accepted {
            mark,
            outcome,
            lower,
        } => (mark, outcome, lower),
        other => panic!("refused: {other:?}"),
    }
}

#[track_caller]
fn stale(declared: Declared) -> Mark {
    match declared {
        Declared::Stale { mark } => mark,
        other => panic!("not stale: {other:?}"),
    }
}

fn backends(records: &[Registered]) -> BTreeSet<Backend> {
    records.iter().map(|r| r.backend).collect()
}

async fn sessions_of(store: &dyn Authority, scope: &Scope) -> Vec<Registered> {
    let all = store.sessions().await.expect("sessions answers");
    all.into_iter()
        .filter(|(s, _)| s == scope)
        .map(|(_, r)| r)
        .collect()
}

async fn mark_of(store: &dyn Authority, scope: &Scope) -> Option<Mark> {
    let all = store.marks().await.expect("marks answers");
    all.into_iter().find(|(s, _)| s == scope).map(|(_, m)| m)
}

async fn raises_and_refuses(store: &dyn Authority) {
    let (s, a, b) = (fresh_scope(), fresh_backend(), fresh_backend());
    assert_eq!(mark_of(store, &s).await, None);
    let (raised, outcome, lower) = accepted(declare(store, &s, 5, a).await);
    assert_eq!(
        (raised.token, outcome, lower),
        (token(5), DeclareOutcome::Raised, vec![])
    );
    assert_eq!(raised.raised_by, "suite");
    let (current, outcome, _) = accepted(declare(store, &s, 5, b).await);
    assert_eq!(
        (&current, outcome),
        (&raised, DeclareOutcome::Current),
        "equal changes nothing"
    );
    assert_eq!(stale(declare(store, &s, 4, fresh_backend()).await), raised);
    assert_eq!(stale(declare(store, &s, 1, a).await), raised);
    assert_eq!(mark_of(store, &s).await, Some(raised));
    let max = accepted(declare(store, &s, Token::MAX, b).await).0;
    assert_eq!(max.token.get(), Token::MAX);
    assert_eq!(stale(declare(store, &s, Token::MAX - 1, a).await), max);
}

async fn lists_lower_sessions_until_drained(store: &dyn Authority) {
    let s = fresh_scope();
    let [a, b, c, d] = [
        fresh_backend(),
        fresh_backend(),
        fresh_backend(),
        fresh_backend(),
    ];
    declare(store, &s, 1, a).await;
    declare(store, &s, 2, b).await;
    let (_, outcome, lower) = accepted(declare(store, &s, 3, c).await);
    assert_eq!(outcome, DeclareOutcome::Raised);
    assert_eq!(backends(&lower), BTreeSet::from([a, b]));
    assert_eq!(
        lower.iter().map(|r| r.token.get()).sum::<u64>(),
        3,
        "with their tokens"
    );
    let (_, outcome, lower) = accepted(declare(store, &s, 3, d).await);
    assert_eq!(outcome, DeclareOutcome::Current);
    assert_eq!(
        backends(&lower),
        BTreeSet::from([a, b]),
        "any proxy can finish the barrier"
    );
    let left = store
        .drained(&s, token(3).into(), &[a])
        .await
        .expect("drained answers");
    match left {
        Drained::Left(left) => assert_eq!(backends(&left), BTreeSet::from([b])),
        Drained::Complete => panic!("drained though {b} is registered"),
    }
    let (.., lower) = accepted(declare(store, &s, 3, d).await);
    assert_eq!(backends(&lower), BTreeSet::from([b]));
    assert_eq!(
        store.drained(&s, token(3).into(), &[b]).await,
        Ok(Drained::Complete)
    );
    assert_eq!(accepted(declare(store, &s, 3, d).await).2, vec![]);
    let (.., lower) = accepted(declare(store, &s, 9, fresh_backend()).await);
    assert_eq!(
        backends(&lower),
        BTreeSet::from([c, d]),
        "the next raise is not drained"
    );
}

async fn moves_up_and_never_down(store: &dyn Authority) {
    let (s, a, b) = (fresh_scope(), fresh_backend(), fresh_backend());
    declare(store, &s, 1, a).await;
    declare(store, &s, 1, b).await;
    let (.., lower) = accepted(declare(store, &s, 2, a).await);
    assert_eq!(
        backends(&lower),
        BTreeSet::from([b]),
        "a moved, so it is not its own victim"
    );
    stale(declare(store, &s, 1, a).await);
    let held: BTreeMap<Backend, u64> = sessions_of(store, &s)
        .await
        .into_iter()
        .map(|r| (r.backend, r.token.get()))
        .collect();
    assert_eq!(held, BTreeMap::from([(a, 2), (b, 1)]));
    let (_, outcome, lower) = accepted(declare(store, &s, 2, b).await);
    assert_eq!(
        (outcome, lower),
        (DeclareOutcome::Current, vec![]),
        "b moved too"
    );
}

async fn drained_removes_lower_records_only(store: &dyn Authority) {
    let (s, a, b) = (fresh_scope(), fresh_backend(), fresh_backend());
    let other = fresh_scope();
    declare(store, &s, 1, a).await;
    declare(store, &other, 1, a).await;
    declare(store, &s, 2, b).await;
    let twin = Backend {
        started_us: a.started_us ^ 1,
        ..a
    };
    assert!(matches!(
        store.drained(&s, token(2).into(), &[twin]).await,
        Ok(Drained::Left(_))
    ));
    assert_eq!(
        store.drained(&s, token(2).into(), &[a, b, twin]).await,
        Ok(Drained::Complete)
    );
    assert_eq!(
        backends(&sessions_of(store, &s).await),
        BTreeSet::from([b]),
        "b is not lower"
    );
    assert_eq!(
        backends(&sessions_of(store, &other).await),
        BTreeSet::from([a])
    );
}

async fn late_drained_does_not_count(store: &dyn Authority) {
    let (s, a, b, c) = (
        fresh_scope(),
        fresh_backend(),
        fresh_backend(),
        fresh_backend(),
    );
    declare(store, &s, 1, a).await;
    declare(store, &s, 2, b).await;
    declare(store, &s, 3, c).await;
    // The barrier of token 2 reports late, and one for an undeclared token reports too.
    assert_eq!(
        store.drained(&s, token(2).into(), &[a]).await,
        Ok(Drained::Complete)
    );
    assert!(matches!(
        store.drained(&s, token(9).into(), &[]).await,
        Ok(Drained::Left(_))
    ));
    let (.., lower) = accepted(declare(store, &s, 3, c).await);
    assert_eq!(
        backends(&lower),
        BTreeSet::from([b]),
        "token 3 is not drained by 2 or 9"
    );
    let unknown = fresh_scope();
    assert_eq!(
        store.drained(&unknown, token(7).into(), &[]).await,
        Ok(Drained::Complete)
    );
    assert_eq!(mark_of(store, &unknown).await, None, "drained sets no mark");
    accepted(declare(store, &unknown, 1, a).await);
}

async fn forget_removes_everywhere(store: &dyn Authority) {
    let (s, t) = (fresh_scope(), fresh_scope());
    let [a, b, c] = [fresh_backend(), fresh_backend(), fresh_backend()];
    for backend in [a, b, c] {
        declare(store, &s, 1, backend).await;
        declare(store, &t, 1, backend).await;
    }
    store.forget(&[a]).await.expect("forget answers");
    store.forget(&[a]).await.expect("again is no error");
    assert_eq!(
        backends(&sessions_of(store, &s).await),
        BTreeSet::from([b, c])
    );
    assert_eq!(
        backends(&sessions_of(store, &t).await),
        BTreeSet::from([b, c])
    );
    store
        .forget(&[b, fresh_backend()])
        .await
        .expect("forget answers");
    assert_eq!(backends(&sessions_of(store, &t).await), BTreeSet::from([c]));
    let (.., lower) = accepted(declare(store, &s, 2, fresh_backend()).await);
    assert_eq!(
        backends(&lower),
        BTreeSet::from([c]),
        "sessions that are gone are not ended"
    );
    assert_eq!(
        mark_of(store, &t).await.map(|m| m.token),
        Some(token(1)),
        "marks stay"
    );
}

/// A report of an ended session may be repeated, and come after its process id was reused. The session with the
/// reused id stays, and so do those that a later takeover must end.
async fn removals_that_come_late_remove_nobody_else(store: &dyn Authority) {
    let s = fresh_scope();
    let (old, other) = (fresh_backend(), fresh_backend());
    let reused = Backend {
        started_us: old.started_us + 1,
        ..old
    };
    declare(store, &s, 1, old).await;
    store.forget(&[old]).await.expect("forget answers");
    declare(store, &s, 1, reused).await;
    declare(store, &s, 1, other).await;
    store.forget(&[old]).await.expect("late, and again");
    let both = BTreeSet::from([reused, other]);
    assert_eq!(backends(&sessions_of(store, &s).await), both);
    let (.., lower) = accepted(declare(store, &s, 2, fresh_backend()).await);
    assert_eq!(backends(&lower), both);
    let late = store.drained(&s, token(2).into(), &[old]).await;
    let Ok(Drained::Left(left)) = late else {
        panic!("{late:?}");
    };
    assert_eq!(backends(&left), both, "the scope is not drained by it");
    assert_eq!(
        store.drained(&s, token(2).into(), &[reused, other]).await,
        Ok(Drained::Complete)
    );
}

async fn scopes_are_apart(store: &dyn Authority) {
    let s = fresh_scope();
    // Names with a common beginning must not meet in a range scan.
    let longer = scope(&format!("{s}/x"));
    let (a, b) = (fresh_backend(), fresh_backend());
    declare(store, &s, 8, a).await;
    let (_, outcome, lower) = accepted(declare(store, &longer, 3, b).await);
    assert_eq!((outcome, lower), (DeclareOutcome::Raised, vec![]));
    let (.., lower) = accepted(declare(store, &s, 9, b).await);
    assert_eq!(backends(&lower), BTreeSet::from([a]));
    assert_eq!(
        mark_of(store, &longer).await.map(|m| m.token),
        Some(token(3))
    );
}
