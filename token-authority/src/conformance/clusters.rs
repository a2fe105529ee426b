//! Cluster on record: a deposed primary is refused, and recovery lets no mark fall.

use super::{
    CLUSTER, accepted, declare, fresh_backend, fresh_scope, mark_of, recover, sessions_of, stale,
    token,
};
use crate::{Authority, Cluster, Declaration, DeclareOutcome, Declared, Drained, Enrolled, Mark};

const fn on_timeline(timeline: u32) -> Cluster {
    Cluster {
        timeline,
        ..CLUSTER
    }
}

async fn enrol(store: &dyn Authority, cluster: Cluster) -> Enrolled {
    store.enrol(cluster).await.expect("enrol answers")
}

async fn on_record(store: &dyn Authority) -> Option<Cluster> {
    store.cluster().await.expect("cluster answers")
}

pub(super) async fn old_timelines_are_refused(store: &dyn Authority) {
    assert_eq!(on_record(store).await, Some(CLUSTER));
    assert_eq!(enrol(store, CLUSTER).await, Enrolled::Accepted, "again");
    let refused = Enrolled::Refused { recorded: CLUSTER };
    let older = on_timeline(CLUSTER.timeline - 1);
    assert_eq!(enrol(store, older).await, refused);
    let other = Cluster {
        system_identifier: 1,
        timeline: CLUSTER.timeline + 9,
        ..CLUSTER
    };
    assert_eq!(enrol(store, other).await, refused, "another cluster");
    let (s, a) = (fresh_scope(), fresh_backend());
    let mut declaration = Declaration::new(&s, token(1), a, older, "suite");
    // A newer timeline too: the declaring proxy has enrolled it, so the store has forgotten it.
    for cluster in [older, other, on_timeline(CLUSTER.timeline + 1)] {
        declaration.cluster = cluster;
        let recorded = Some(CLUSTER);
        assert_eq!(
            store.declare(&declaration).await,
            Ok(Declared::OtherCluster { recorded })
        );
    }
    assert_eq!(
        mark_of(store, &s).await,
        None,
        "a refused declaration raises nothing"
    );
    assert_eq!(sessions_of(store, &s).await, vec![]);

    let promoted = on_timeline(CLUSTER.timeline + 1);
    assert_eq!(enrol(store, promoted).await, Enrolled::Accepted);
    assert_eq!(on_record(store).await, Some(promoted));
    let recorded = promoted;
    assert_eq!(enrol(store, CLUSTER).await, Enrolled::Refused { recorded });
    declaration.cluster = CLUSTER;
    assert_eq!(
        store.declare(&declaration).await,
        Ok(Declared::OtherCluster {
            recorded: Some(promoted)
        }),
        "the deposed primary"
    );
    declaration.cluster = promoted;
    let declared = store.declare(&declaration).await.expect("declare answers");
    accepted(declared);
    store.forget(&[a]).await.expect("forget answers");
    // An operator can also go back.
    recover(store, &[]).await;
    assert_eq!(on_record(store).await, Some(CLUSTER));
}

/// Of two servers with the same storage, the one started last is recorded. The other one is accepted again after a
/// restart.
pub(super) async fn a_server_beside_a_later_copy_is_refused(store: &dyn Authority) {
    let started = |later: i64| Cluster {
        postmaster_us: CLUSTER.postmaster_us + later,
        ..CLUSTER
    };
    let (copy, again) = (started(10), started(20));
    let (s, a, b) = (fresh_scope(), fresh_backend(), fresh_backend());
    accepted(declare(store, &s, 1, a).await);
    assert_eq!(enrol(store, copy).await, Enrolled::Accepted);
    let recorded = copy;
    assert_eq!(enrol(store, CLUSTER).await, Enrolled::Refused { recorded });
    let recorded = Some(copy);
    let declared = declare(store, &s, 2, b).await;
    assert_eq!(declared, Declared::OtherCluster { recorded });
    assert_eq!(mark_of(store, &s).await.map(|m| m.token), Some(token(1)));
    assert_eq!(on_record(store).await, recorded);
    assert_eq!(enrol(store, again).await, Enrolled::Accepted);
    let recorded = again;
    assert_eq!(enrol(store, copy).await, Enrolled::Refused { recorded });
    // A promoted replica may have started before the server that it replaces.
    let promoted = Cluster {
        timeline: CLUSTER.timeline + 1,
        ..started(-10)
    };
    assert_eq!(enrol(store, promoted).await, Enrolled::Accepted);
    assert_eq!(on_record(store).await, Some(promoted));
    recover(store, &[]).await;
}

pub(super) async fn recovery_lets_no_mark_fall(store: &dyn Authority) {
    let [lower, higher, missing] = [fresh_scope(), fresh_scope(), fresh_scope()];
    let (a, b) = (fresh_backend(), fresh_backend());
    for scope in [&lower, &higher] {
        declare(store, scope, 5, a).await;
        assert_eq!(
            store.drained(scope, token(5).into(), &[]).await,
            Ok(Drained::Complete)
        );
    }
    let mark = |value| Mark::new(token(value), 7, "witness".to_owned());
    let marks = [
        (lower.clone(), mark(9)),
        (higher.clone(), mark(2)),
        (missing.clone(), mark(4)),
    ];
    for _ in 0..2 {
        recover(store, &marks).await;
        assert_eq!(mark_of(store, &lower).await, Some(mark(9)));
        assert_eq!(mark_of(store, &missing).await, Some(mark(4)));
        let kept = mark_of(store, &higher).await.map(|m| m.token);
        assert_eq!(kept, Some(token(5)), "it does not fall");
    }
    assert_eq!(stale(declare(store, &missing, 3, b).await), mark(4));
    let (_, outcome, old) = accepted(declare(store, &lower, 9, b).await);
    assert_eq!(outcome, DeclareOutcome::Current);
    assert_eq!(old.len(), 1, "a raised scope is not drained: {old:?}");
}

/// Recovery depends on what the operator has seen. Repeated after a promotion, it does not revert the promotion.
pub(super) async fn recovery_that_comes_late_changes_nothing(store: &dyn Authority) {
    let other = Cluster {
        system_identifier: 1,
        ..CLUSTER
    };
    let promoted = Cluster {
        timeline: other.timeline + 1,
        ..other
    };
    let missing = fresh_scope();
    let marks = [(
        missing.clone(),
        Mark::new(token(4), 7, "witness".to_owned()),
    )];
    let seen = Some(CLUSTER);
    for _ in 0..2 {
        let recovered = store.recover(seen, other, &[]).await;
        assert_eq!(
            recovered,
            Ok(Enrolled::Accepted),
            "again, for its answer was lost"
        );
    }
    assert_eq!(enrol(store, promoted).await, Enrolled::Accepted);
    let recorded = promoted;
    let late = store.recover(seen, other, &marks).await;
    assert_eq!(late, Ok(Enrolled::Refused { recorded }));
    assert_eq!(on_record(store).await, Some(promoted));
    assert_eq!(mark_of(store, &missing).await, None);
    recover(store, &[]).await;
}
