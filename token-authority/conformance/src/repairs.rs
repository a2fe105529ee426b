//! Repairs: the mark is set down or up, and everything before is lower.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::timeout;

use pgpalisade_authority::{
    Authority, Backend, Declared, Incarnation, Mark, Rank, Registered, Repair, RepairRequest,
    Repaired, Scope,
};

use super::{CLUSTER, backends, declare, fresh_backend, fresh_scope, mark_of, token};

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

#[track_caller]
fn done(repaired: Repaired) -> (Mark, Vec<Registered>) {
    match repaired {
        Repaired::Done { mark, lower } => (mark, lower),
        other => panic!("not repaired: {other:?}"),
    }
}

/// A repair while sessions declare. Each accepted declaration comes before the repair and is to be ended, or after it
/// and belongs to the new incarnation.
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
