//! Repairs: the mark is set down or up, and everything before is lower.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{
    CLUSTER, accepted, backends, declare, fresh_backend, fresh_scope, mark_of, recover,
    sessions_of, stale, token,
};
use crate::{
    Authority, Backend, Cluster, DeclareOutcome, Declared, Drained, Incarnation, Mark, Rank,
    Registered, Repair, RepairRequest, Repaired, Scope, Token,
};

/// Rounds of a race. Each has only one moment that counts.
const ROUNDS: u32 = 12;

/// A record unlike that of any other repair.
pub(super) fn repair_of(from: u64, to: u64) -> Repair {
    let at = rand::random_range(0..1 << 62);
    Repair::new(
        at,
        "alice@db1",
        "a script said 2^63-1",
        token(from),
        token(to),
    )
}

pub(super) fn request(scope: &Scope, expected: Rank, repair: &Repair) -> RepairRequest {
    RepairRequest {
        scope: scope.clone(),
        expected,
        cluster: CLUSTER,
        repair: repair.clone(),
    }
}

fn rank(incarnation: u32, value: u64) -> Rank {
    Rank {
        incarnation: Incarnation::new(incarnation),
        token: token(value),
    }
}

async fn repair(
    store: &dyn Authority,
    scope: &Scope,
    expected: Rank,
    to: u64,
) -> (Mark, Vec<Registered>) {
    let repair = repair_of(expected.token.get(), to);
    let asked = request(scope, expected, &repair);
    done(store.repair(&asked).await.expect("repair answers"))
}

#[track_caller]
fn done(repaired: Repaired) -> (Mark, Vec<Registered>) {
    match repaired {
        Repaired::Done { mark, lower } => (mark, lower),
        other => panic!("not repaired: {other:?}"),
    }
}

pub(super) async fn set_the_mark_in_a_new_incarnation(store: &dyn Authority) {
    let s = fresh_scope();
    let [old, poisoned, moving] = [fresh_backend(), fresh_backend(), fresh_backend()];
    declare(store, &s, 33, old).await;
    declare(store, &s, 33, moving).await;
    declare(store, &s, Token::MAX, poisoned).await;
    stale(declare(store, &s, 35, fresh_backend()).await);
    let (mark, lower) = repair(store, &s, rank(0, Token::MAX), 34).await;
    assert_eq!(mark.rank(), rank(1, 34));
    let kept = mark.repair.as_deref().expect("the record is kept");
    assert_eq!(
        (kept.by.as_str(), kept.from, kept.to),
        ("alice@db1", token(Token::MAX), token(34))
    );
    assert!(mark.raised_by.contains("alice@db1"), "{mark:?}");
    assert_eq!(
        backends(&lower),
        BTreeSet::from([old, poisoned, moving]),
        "whatever their tokens"
    );
    assert_eq!(store.mark(&s).await, Ok(Some(mark.clone())));
    assert_eq!(mark_of(store, &s).await, Some(mark.clone()));
    assert_eq!(stale(declare(store, &s, 33, old).await), mark);
    // A late barrier of the old incarnation does not count for the new one.
    let late = store.drained(&s, rank(0, Token::MAX), &[]).await;
    assert!(matches!(late, Ok(Drained::Left(_))), "{late:?}");
    let (at, outcome, lower) = accepted(declare(store, &s, 34, moving).await);
    assert_eq!((at, outcome), (mark.clone(), DeclareOutcome::Current));
    assert_eq!(
        backends(&lower),
        BTreeSet::from([old, poisoned]),
        "moved up, though its token was the same or higher"
    );
    let (raised, outcome, lower) = accepted(declare(store, &s, 35, fresh_backend()).await);
    assert_eq!(
        (raised.rank(), outcome),
        (rank(1, 35), DeclareOutcome::Raised),
        "in the same incarnation"
    );
    assert_eq!(raised.repair, mark.repair, "the record stays");
    assert_eq!(backends(&lower), BTreeSet::from([old, poisoned, moving]));
    let all = backends(&lower).into_iter().collect::<Vec<_>>();
    let first = store.drained(&s, raised.rank(), &[old, poisoned]).await;
    assert!(matches!(first, Ok(Drained::Left(_))), "{first:?}");
    assert_eq!(
        store.drained(&s, raised.rank(), &all).await,
        Ok(Drained::Complete)
    );
    assert_eq!(sessions_of(store, &s).await.len(), 1);
    // Up, and down again; also from a drained scope.
    let (mark, lower) = repair(store, &s, rank(1, 35), 1_000_000).await;
    assert_eq!((mark.rank(), lower.len()), (rank(2, 1_000_000), 1));
    let (mark, lower) = repair(store, &s, rank(2, 1_000_000), 1).await;
    assert_eq!((mark.rank(), lower.len()), (rank(3, 1), 1));
    let gone = backends(&lower).into_iter().collect::<Vec<_>>();
    assert_eq!(
        store.drained(&s, rank(3, 1), &gone).await,
        Ok(Drained::Complete)
    );
    let (.., lower) = accepted(declare(store, &s, 1, fresh_backend()).await);
    assert_eq!(lower, vec![], "drained for the repaired mark");
}

pub(super) async fn are_refused_where_the_scope_is_another_than_seen(store: &dyn Authority) {
    let (s, a) = (fresh_scope(), fresh_backend());
    let repair = repair_of(9, 5);
    let unknown = store.repair(&request(&s, rank(0, 9), &repair)).await;
    assert_eq!(unknown, Ok(Repaired::Changed { mark: None }));
    assert_eq!(mark_of(store, &s).await, None, "no mark is made");
    let (mark, ..) = accepted(declare(store, &s, 9, a).await);
    for expected in [rank(0, 8), rank(0, 10), rank(1, 9)] {
        let refused = store.repair(&request(&s, expected, &repair)).await;
        let mark = Some(mark.clone());
        assert_eq!(refused, Ok(Repaired::Changed { mark }));
    }
    let elsewhere = RepairRequest {
        cluster: Cluster {
            timeline: CLUSTER.timeline + 1,
            ..CLUSTER
        },
        ..request(&s, rank(0, 9), &repair)
    };
    let recorded = Some(CLUSTER);
    assert_eq!(
        store.repair(&elsewhere).await,
        Ok(Repaired::OtherCluster { recorded })
    );
    assert_eq!(mark_of(store, &s).await, Some(mark));
}

pub(super) async fn asked_for_again_change_nothing(store: &dyn Authority) {
    let (s, a, b) = (fresh_scope(), fresh_backend(), fresh_backend());
    declare(store, &s, 9, a).await;
    let repair = repair_of(9, 5);
    let asked = request(&s, rank(0, 9), &repair);
    let first = store.repair(&asked).await.expect("repair answers");
    accepted(declare(store, &s, 5, b).await);
    let again = store.repair(&asked).await.expect("repair answers");
    assert_eq!(first, again, "and b, who came later, is not lower");
    store.drained(&s, rank(1, 5), &[a]).await.expect("answers");
    let (mark, lower) = done(store.repair(&asked).await.expect("repair answers"));
    assert_eq!((mark.rank(), lower), (rank(1, 5), vec![]));
    let (mark, ..) = accepted(declare(store, &s, 6, b).await);
    assert_eq!(
        store.repair(&asked).await,
        Ok(Repaired::Changed { mark: Some(mark) }),
        "once it was raised, it is another mark"
    );
}

pub(super) async fn recovery_keeps_the_incarnation(store: &dyn Authority) {
    let (s, a) = (fresh_scope(), fresh_backend());
    declare(store, &s, Token::MAX, a).await;
    let (repaired, _) = repair(store, &s, rank(0, Token::MAX), 34).await;
    // The witness from before the repair has the higher number, but the lower rank.
    let old = Mark::new(token(Token::MAX), 1, "witness".to_owned());
    let marks = [(s.clone(), old.clone())];
    recover(store, &marks).await;
    assert_eq!(mark_of(store, &s).await, Some(repaired));
    let later = Mark {
        incarnation: Incarnation::new(2),
        token: token(3),
        ..old.clone()
    };
    let t = fresh_scope();
    for scope in [&s, &t] {
        let marks = [
            (scope.clone(), old.clone()),
            (scope.clone(), later.clone()),
            (scope.clone(), old.clone()),
        ];
        recover(store, &marks).await;
        assert_eq!(mark_of(store, scope).await, Some(later.clone()));
        accepted(declare(store, scope, 3, fresh_backend()).await);
    }
}

/// A repair while sessions declare. Each accepted declaration comes before the repair and is among those to be ended,
/// or after it and belongs to the new incarnation.
pub(super) async fn are_ordered_with_declarations(handles: &[Arc<dyn Authority>]) {
    for _ in 0..ROUNDS {
        let s = fresh_scope();
        let race = Arc::new((AtomicU64::new(2), AtomicBool::new(false)));
        let mut declaring = JoinSet::new();
        for (_, handle) in (0..6).zip(handles.iter().cycle()) {
            let (handle, s, race) = (Arc::clone(handle), s.clone(), Arc::clone(&race));
            declaring.spawn(async move { declare_all_along(handle.as_ref(), &s, &race).await });
        }
        let store = handles.last().expect("a handle").as_ref();
        let (mark, lower) = repair_what_is_there(store, &s).await;
        race.1.store(true, Ordering::SeqCst);
        let ended = backends(&lower);
        for (backend, answered) in declaring.join_all().await.into_iter().flatten() {
            let before = answered.incarnation < mark.incarnation;
            assert_eq!(ended.contains(&backend), before, "{answered:?} of {s}");
        }
    }
}

async fn repair_what_is_there(store: &dyn Authority, s: &Scope) -> (Mark, Vec<Registered>) {
    loop {
        tokio::task::yield_now().await;
        let Some(mark) = store.mark(s).await.expect("mark answers") else {
            continue;
        };
        let repair = repair_of(mark.token.get(), 1);
        let asked = request(s, mark.rank(), &repair);
        match store.repair(&asked).await.expect("repair answers") {
            Repaired::Done { mark, lower } => return (mark, lower),
            Repaired::Changed { .. } => {}
            other => panic!("not repaired: {other:?}"),
        }
    }
}

/// Declares new sessions until the repaired mark judges one. Returns the accepted ones.
async fn declare_all_along(
    store: &dyn Authority,
    s: &Scope,
    (tokens, repaired): &(AtomicU64, AtomicBool),
) -> Vec<(Backend, Mark)> {
    let mut all = Vec::new();
    loop {
        // Few raises, so that the repair gets its turn, and many that join.
        let value = tokens.fetch_add(1, Ordering::SeqCst) / 64 + 1;
        let late = repaired.load(Ordering::SeqCst);
        let backend = fresh_backend();
        let mark = match declare(store, s, value, backend).await {
            Declared::Accepted { mark, .. } => {
                all.push((backend, mark.clone()));
                mark
            }
            Declared::Stale { mark } => mark,
            other => panic!("refused: {other:?}"),
        };
        let is_new = mark.incarnation > Incarnation::FIRST;
        assert!(is_new || !late, "{mark:?} after the repair was answered");
        if is_new {
            return all;
        }
    }
}

pub(super) async fn that_race_are_one(handles: &[Arc<dyn Authority>]) {
    for _ in 0..ROUNDS {
        let s = fresh_scope();
        let store = handles.first().expect("a handle").as_ref();
        declare(store, &s, 9, fresh_backend()).await;
        let mut racing = JoinSet::new();
        for (to, handle) in (1..=4).zip(handles.iter().cycle()) {
            let (handle, s) = (Arc::clone(handle), s.clone());
            racing.spawn(async move {
                let repair = repair_of(9, to);
                let asked = request(&s, rank(0, 9), &repair);
                handle.repair(&asked).await.expect("repair answers")
            });
        }
        let (mut won, mut seen) = (Vec::new(), Vec::new());
        for repaired in racing.join_all().await {
            match repaired {
                Repaired::Done { mark, .. } => won.push(mark),
                Repaired::Changed { mark } => seen.extend(mark),
                other => panic!("not repaired: {other:?}"),
            }
        }
        assert_eq!((won.len(), seen.len()), (1, 3), "{won:?} {seen:?}");
        assert!(seen.iter().all(|mark| won.contains(mark)), "{seen:?}");
        assert_eq!(mark_of(store, &s).await, won.pop());
    }
}

/// A repair that the caller abandons and repeats is one repair.
pub(super) async fn that_are_abandoned_are_taken_once(handles: &[Arc<dyn Authority>], seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    for round in 0..ROUNDS {
        let s = fresh_scope();
        let store = handles.first().expect("a handle").as_ref();
        declare(store, &s, 9, fresh_backend()).await;
        let repair = repair_of(9, 5);
        let asked = request(&s, rank(0, 9), &repair);
        for _ in 0..3 {
            let patience = Duration::from_micros(rng.random_range(0..3000));
            let _ = timeout(patience, store.repair(&asked)).await;
        }
        let last = handles.last().expect("a handle");
        let (mark, lower) = done(last.repair(&asked).await.expect("repair answers"));
        assert_eq!(
            (mark.rank(), lower.len()),
            (rank(1, 5), 1),
            "round {round}, seed {seed}"
        );
    }
}
