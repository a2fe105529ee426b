//! Leases: one holder at a time, while it renews in time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use pgpalisade_authority::{Authority, LeaseId, LeaseStep, Leased, Scope};

use super::fresh_scope;

/// The shortest time that a client may ask for.
const TIME: Duration = Duration::from_secs(3);
/// Longer than a test runs.
const LONG: Duration = Duration::from_secs(600);
/// etcd may end a lease later than necessary.
const LATE: Duration = Duration::from_secs(12);

async fn step(store: &dyn Authority, scope: &Scope, holder: LeaseId, step: LeaseStep) -> Leased {
    let leased = store.lease(scope, holder, step).await;
    leased.expect("lease answers")
}

/// A holder that renews keeps the lease beyond its time. One that does not renew loses it, but not early.
pub async fn lapse([one, two]: &[Arc<dyn Authority>; 2]) {
    let (one, two, s) = (one.as_ref(), two.as_ref(), fresh_scope());
    let (a, b) = (LeaseId::random(), LeaseId::random());
    let begun = Instant::now();
    assert_eq!(
        step(one, &s, a, LeaseStep::Acquire(TIME)).await,
        Leased::Held
    );
    while begun.elapsed() < TIME * 4 / 3 {
        assert_eq!(
            step(two, &s, b, LeaseStep::Acquire(TIME)).await,
            Leased::NotHeld
        );
        assert_eq!(step(one, &s, a, LeaseStep::Renew(TIME)).await, Leased::Held);
        sleep(Duration::from_millis(500)).await;
    }
    let renewing = Instant::now();
    assert_eq!(step(one, &s, a, LeaseStep::Renew(TIME)).await, Leased::Held);
    while step(two, &s, b, LeaseStep::Acquire(TIME)).await == Leased::NotHeld {
        assert!(renewing.elapsed() < LATE, "it never lapses");
        sleep(Duration::from_millis(50)).await;
    }
    assert!(renewing.elapsed() > TIME * 9 / 10, "it has lapsed early");
    assert_eq!(
        step(one, &s, a, LeaseStep::Renew(TIME)).await,
        Leased::NotHeld
    );
}

pub(super) async fn at_once_have_one_winner(handles: &[Arc<dyn Authority>]) {
    let s = fresh_scope();
    for _round in 0..6 {
        let mut tasks = JoinSet::new();
        for store in handles.iter().cycle().take(24) {
            let (store, s, holder) = (Arc::clone(store), s.clone(), LeaseId::random());
            tasks.spawn(async move {
                (
                    holder,
                    step(store.as_ref(), &s, holder, LeaseStep::Acquire(LONG)).await,
                )
            });
        }
        let answers = tasks.join_all().await;
        let winners = answers.iter().filter(|(_, leased)| *leased == Leased::Held);
        let winners: Vec<LeaseId> = winners.map(|(holder, _)| *holder).collect();
        let [winner] = winners.as_slice() else {
            panic!("{} have won", winners.len());
        };
        for store in handles {
            step(store.as_ref(), &s, *winner, LeaseStep::Release).await;
        }
    }
}
