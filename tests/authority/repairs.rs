//! The format of a store changes with its first repair, in the same step, and proxies that know it go on.

use pgpalisade_authority::{
    Authority, Declared, Incarnation, Mark, Repair, RepairRequest, Repaired,
};
use pgpalisade_tests::etcd;

use crate::stage::{CLUSTER, connect, declare, lower, scope, token};

fn format(etcd: &etcd::Etcd) -> bool {
    let identity = etcd.ctl(&["get", "/pgpalisade/identity", "--print-value-only"]);
    assert!(identity.contains("\"format\":"), "{identity}");
    identity.contains("\"format\":2")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_one_changes_the_format_and_open_handles_go_on() {
    let etcd = etcd::Etcd::start(1);
    let (one, other) = (connect(&etcd).await, connect(&etcd).await);
    let s = scope("s");
    declare(&one, &s, 9, 1).await.unwrap();
    declare(&other, &s, 9, 2).await.unwrap();
    assert!(!format(&etcd), "older versions can use it until then");
    let repair = Repair::new(1, "alice", "a test", token(9), token(5));
    let request = RepairRequest {
        scope: s.clone(),
        expected: token(9).into(),
        cluster: CLUSTER,
        repair: repair.clone(),
    };
    let repaired = one.repair(&request).await.unwrap();
    assert!(matches!(repaired, Repaired::Done { .. }), "{repaired:?}");
    assert!(format(&etcd));
    // The other handle was opened on the format before, and compares the identity in each step.
    let declared = declare(&other, &s, 4, 3).await.unwrap();
    assert!(matches!(declared, Declared::Stale { .. }), "{declared:?}");
    assert_eq!(lower(declare(&other, &s, 6, 3).await.unwrap()).len(), 2);
    assert_eq!(lower(declare(&one, &s, 7, 4).await.unwrap()).len(), 3);
    other.enrol(CLUSTER).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovery_to_a_repaired_mark_changes_the_format_too() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let mark = Mark {
        incarnation: Incarnation::new(1),
        ..Mark::new(token(5), 1, "witness".to_owned())
    };
    let marks = [
        (scope("a"), mark.clone()),
        (scope("b"), Mark::new(token(1), 1, String::new())),
        (scope("c"), mark),
    ];
    store
        .recover(Some(CLUSTER), CLUSTER, &marks[1..2])
        .await
        .unwrap();
    assert!(!format(&etcd));
    store.recover(Some(CLUSTER), CLUSTER, &marks).await.unwrap();
    assert!(format(&etcd));
    assert_eq!(store.marks().await.unwrap(), marks);
}
