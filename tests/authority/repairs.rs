//! A scope is repaired through one handle, and the others go on.

use pgpalisade_authority::{Authority, Declared, Repair, RepairRequest, Repaired};
use pgpalisade_test_servers::etcd;

use crate::stage::{CLUSTER, connect, declare, lower, scope, token};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_handles_go_on() {
    let etcd = etcd::Etcd::start(1);
    let (one, other) = (connect(&etcd).await, connect(&etcd).await);
    let s = scope("s");
    declare(&one, &s, 9, 1).await.unwrap();
    declare(&other, &s, 9, 2).await.unwrap();
    let repair = Repair::new(1, "alice", "a test", token(9), token(5));
    let request = RepairRequest {
        scope: s.clone(),
        expected: token(9).into(),
        cluster: CLUSTER,
        repair,
    };
    let repaired = one.repair(&request).await.unwrap();
    assert!(matches!(repaired, Repaired::Done { .. }), "{repaired:?}");
    let declared = declare(&other, &s, 4, 3).await.unwrap();
    assert!(matches!(declared, Declared::Stale { .. }), "{declared:?}");
    assert_eq!(lower(declare(&other, &s, 6, 3).await.unwrap()).len(), 2);
    assert_eq!(lower(declare(&one, &s, 7, 4).await.unwrap()).len(), 3);
    other.enrol(CLUSTER).await.unwrap();
}
