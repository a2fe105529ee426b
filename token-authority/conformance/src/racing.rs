//! Failover, or copy, while the old primary's proxies still declare.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::task::JoinSet;

use pgpalisade_authority::{Authority, Backend, Cluster, Declared, Enrolled, Registered, Scope};

use super::{CLUSTER, backends, declare_on, fresh_backend, fresh_scope, recover};

/// Successors of [`CLUSTER`]: a promoted replica, and a server that was started later.
const SUCCESSORS: [Cluster; 2] = [
    Cluster {
        timeline: CLUSTER.timeline + 1,
        postmaster_us: 1,
        ..CLUSTER
    },
    Cluster {
        postmaster_us: CLUSTER.postmaster_us + 1,
        ..CLUSTER
    },
];

/// Each round has only one moment that counts.
const ROUNDS: u32 = 12;

struct Race {
    successor: Cluster,
    scope: Scope,
    tokens: AtomicU64,
    /// Whether the enrolment was answered.
    enrolled: AtomicBool,
}

/// After the enrolment of a successor, no declaration for the old cluster is accepted. Earlier ones come before all
/// of the successor: none of them lists the successor's sessions as lower.
pub(super) async fn enrolment_ends_the_cluster_before(handles: &[Arc<dyn Authority>]) {
    let store = handles.first().expect("a handle");
    for (_, successor) in (0..ROUNDS).zip(SUCCESSORS.into_iter().cycle()) {
        recover(store.as_ref()).await;
        let race = Arc::new(Race {
            successor,
            scope: fresh_scope(),
            tokens: AtomicU64::new(1),
            enrolled: AtomicBool::new(false),
        });
        let mut old = JoinSet::new();
        for (_, handle) in (0..6).zip(handles.iter().cycle()) {
            old.spawn(declare_until_refused(Arc::clone(handle), Arc::clone(&race)));
        }
        tokio::task::yield_now().await;
        let enrolled = handles
            .last()
            .expect("a handle")
            .enrol(successor)
            .await
            .expect("enrol answers");
        assert_eq!(enrolled, Enrolled::Accepted);
        race.enrolled.store(true, Ordering::SeqCst);
        let mut new: BTreeSet<Backend> = BTreeSet::new();
        for (_, handle) in (0..10).zip(handles.iter().cycle()) {
            let (value, backend) = (race.tokens.fetch_add(1, Ordering::SeqCst), fresh_backend());
            let declared =
                declare_on(handle.as_ref(), successor, &race.scope, value, backend).await;
            match declared.expect("declare answers") {
                Declared::Accepted { .. } => new.insert(backend),
                Declared::Stale { .. } => continue,
                other => panic!("refused: {other:?}"),
            };
        }
        for lower in old.join_all().await.into_iter().flatten() {
            let after: Vec<_> = backends(&lower).intersection(&new).copied().collect();
            assert!(
                after.is_empty(),
                "the cluster before has outlived {after:?}"
            );
        }
    }
    recover(store.as_ref()).await;
}

/// Declares for the old cluster until refused. Returns the lower sessions of each accepted declaration.
async fn declare_until_refused(store: Arc<dyn Authority>, race: Arc<Race>) -> Vec<Vec<Registered>> {
    let mut accepted = Vec::new();
    loop {
        let late = race.enrolled.load(Ordering::SeqCst);
        let value = race.tokens.fetch_add(1, Ordering::SeqCst);
        let declared =
            declare_on(store.as_ref(), CLUSTER, &race.scope, value, fresh_backend()).await;
        match declared.expect("declare answers") {
            Declared::OtherCluster { recorded } => {
                assert_eq!(recorded, Some(race.successor));
                return accepted;
            }
            answer if late => panic!("the cluster before, after the enrolment: {answer:?}"),
            Declared::Accepted { lower, .. } => accepted.push(lower),
            Declared::Stale { .. } => {}
            answer @ (Declared::TooFar { .. }
            | Declared::MarkIsLower { .. }
            | Declared::NotElected { .. }) => {
                panic!("{answer:?} without a bound")
            }
        }
    }
}
