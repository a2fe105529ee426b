//! The watch survives restarts, hanging members, and compacted changes.

use std::collections::BTreeMap;
use std::time::Duration;

use pgpalisade_authority::{Authority, Change, Cluster, Scope, Token, Watch};
use pgpalisade_test_servers::etcd;
use pgpalisade_test_servers::machine::PATIENCE;
use tokio::time::timeout;

use crate::stage::{CLUSTER, connect, connect_to, declare, scope, token};

/// Reads until the scope has this mark; returns all marks read.
async fn until(watch: &mut Watch, expect: &Scope, value: u64) -> BTreeMap<Scope, Token> {
    let mut seen = BTreeMap::new();
    let read = async {
        while seen.get(expect) != Some(&token(value)) {
            if let Change::Mark(scope, mark) = watch.recv().await.expect("the store is open") {
                seen.insert(scope, mark.token);
            }
        }
    };
    let done = timeout(PATIENCE, read).await;
    assert!(
        done.is_ok(),
        "no word of {value} in {expect}; heard {seen:?}"
    );
    seen
}

#[tokio::test]
async fn a_member_that_restarts() {
    let mut etcd = etcd::Etcd::start(1);
    let (listener, other) = (connect(&etcd).await, connect(&etcd).await);
    let mut watch = listener.watch();
    let s = scope("restart");
    declare(&other, &s, 1, 1).await.expect("an answer");
    until(&mut watch, &s, 1).await;
    etcd.restart(0);
    etcd.wait_until_ready();
    declare(&other, &s, 2, 1).await.expect("an answer");
    until(&mut watch, &s, 2).await;
    let promoted = Cluster {
        timeline: 2,
        ..CLUSTER
    };
    other.enrol(promoted).await.expect("enrol answers");
    let change = timeout(PATIENCE, watch.recv()).await.expect("a change");
    assert_eq!(change, Some(Change::Cluster(promoted)));
    drop(listener);
    assert_eq!(timeout(PATIENCE, watch.recv()).await, Ok(None), "closed");
}

#[tokio::test]
async fn a_member_that_hangs() {
    let etcd = etcd::Etcd::start(3);
    let (listener, other) = (connect(&etcd).await, connect(&etcd).await);
    let mut watch = listener.watch();
    let s = scope("hangs");
    for (index, value) in [(0, 1), (1, 2), (2, 3)] {
        etcd.pause(index);
        // While the leader hangs, attempts fail until there is another leader.
        let declared = async { while declare(&other, &s, value, 1).await.is_err() {} };
        timeout(PATIENCE, declared).await.expect("an answer");
        until(&mut watch, &s, value).await;
        etcd.resume(index);
    }
}

#[tokio::test]
async fn changes_that_were_compacted() {
    let etcd = etcd::Etcd::start(3);
    let leader = etcd.leader();
    let cut = (leader + 1) % 3;
    let far = [leader, (leader + 2) % 3];
    let store = |members: &[usize]| format!("etcd:{}", etcd.urls_of(members).join(","));
    let listener = connect_to(&store(&[cut])).await;
    let other = connect_to(&store(&far)).await;
    other.enrol(CLUSTER).await.expect("enrol answers");
    let [changed, unchanged] = [scope("changed"), scope("unchanged")];
    let mut watch = listener.watch();
    declare(&other, &unchanged, 1, 1).await.expect("an answer");
    until(&mut watch, &unchanged, 1).await;
    // Longer than the listener tolerates a silent stream.
    etcd.pause(cut);
    tokio::time::sleep(Duration::from_secs(3)).await;
    for value in 1..=20 {
        declare(&other, &changed, value, 1)
            .await
            .expect("an answer");
    }
    let revision = etcd.revision(&far).to_string();
    etcd.ctl_at(&far, &["compact", &revision]);
    etcd.resume(cut);
    let heard = until(&mut watch, &changed, 20).await;
    assert!(
        !heard.contains_key(&unchanged),
        "only what has changed: {heard:?}"
    );
    declare(&other, &changed, 21, 1).await.expect("an answer");
    until(&mut watch, &changed, 21).await;
}
