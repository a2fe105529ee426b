//! Members that hang, die or are cut off: declarations continue, or fail within a bound, and nothing is lost.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use pgpalisade_authority::etcd::{ElectionCandidate, Options};
use pgpalisade_authority::{
    Authority, AuthorityError, Declared, Drained, Etcd, LeaseId, LeaseStep, Leased, Mark,
    TakeoverEnd, TakeoverRecord,
};
use pgpalisade_test_servers::etcd;
use pgpalisade_test_servers::held_relay::{Direction, HeldRelay};
use tokio::time::{sleep, timeout};

use crate::stage::{CLUSTER, backend, connect, connect_to, declare, lower, scope, timed, token};

/// The store's own bound for a call is 4 s.
const BOUND: Duration = Duration::from_millis(4500);

/// Declares until it succeeds; at most twice.
async fn goes_on(what: &str, store: &Etcd, value: u64) {
    let s = scope("faults");
    let (first, took) = timed(what, declare(store, &s, value, 1)).await;
    assert!(took < BOUND, "{what}: {took:?}");
    if first.is_ok() {
        return;
    }
    let (second, _) = timed(what, declare(store, &s, value, 1)).await;
    lower(second.expect("the second attempt"));
}

#[tokio::test]
async fn a_leader_that_hangs_or_dies() {
    let mut etcd = etcd::Etcd::start(3);
    let store = connect(&etcd).await;
    goes_on("healthy", &store, 1).await;
    let leader = etcd.leader();
    etcd.pause(leader);
    goes_on("the leader hangs", &store, 2).await;
    goes_on("the next one", &store, 3).await;
    etcd.resume(leader);
    goes_on("it is back", &store, 4).await;
    let leader = etcd.leader();
    etcd.kill(leader);
    goes_on("the leader dies", &store, 5).await;
    etcd.restart(leader);
    etcd.wait_until_ready();
    goes_on("it is back", &store, 6).await;
    let marks = store.marks().await.expect("marks answers");
    assert_eq!(marks[0].1.token, token(6));
}

/// The lease may be acquired after the call was dropped.
#[tokio::test]
async fn a_call_that_is_dropped_leaves_no_lease() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let acquire = LeaseStep::Acquire(Duration::from_secs(60));
    let mut dropped = 0;
    for moment in 0..60 {
        let s = scope(&format!("dropped-{moment}"));
        let call = store.lease(&s, LeaseId::random(), acquire);
        if timeout(Duration::from_micros(100 * moment), call)
            .await
            .is_ok()
        {
            continue;
        }
        dropped += 1;
        let begun = Instant::now();
        let next = LeaseId::random();
        while store.lease(&s, next, acquire).await.expect("lease answers") != Leased::Held {
            assert!(begun.elapsed() < BOUND, "nobody holds it, after {moment}");
            sleep(Duration::from_millis(10)).await;
        }
    }
    assert!(dropped > 10, "only {dropped} calls were dropped");
}

/// The same holder asks again, before the first lease is revoked.
#[tokio::test]
async fn who_asks_again_after_a_dropped_call_keeps_the_lease() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let acquire = LeaseStep::Acquire(Duration::from_secs(60));
    for moment in 0..60 {
        let (s, holder) = (scope(&format!("again-{moment}")), LeaseId::random());
        let call = store.lease(&s, holder, acquire);
        let _perhaps = timeout(Duration::from_micros(100 * moment), call).await;
        while store
            .lease(&s, holder, acquire)
            .await
            .expect("lease answers")
            != Leased::Held
        {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(20)).await;
        let renewed = store.lease(&s, holder, LeaseStep::Renew(BOUND)).await;
        assert_eq!(renewed.expect("lease answers"), Leased::Held, "{moment}");
    }
}

#[tokio::test]
async fn a_first_endpoint_that_hangs_costs_one_attempt_once() {
    let etcd = etcd::Etcd::start(3);
    let leader = etcd.leader();
    let follower = (leader + 1) % 3;
    let mut urls = etcd.urls();
    urls.swap(0, follower);
    etcd.pause(follower);
    let authority = format!("etcd:{}", urls.join(","));
    let (store, took) = timed("connect", connect_to(&authority)).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    store.enrol(CLUSTER).await.expect("enrol answers");
    let s = scope("hung");
    let (first, took) = timed("the first", declare(&store, &s, 1, 1)).await;
    first.expect("an answer");
    assert!(
        took < Duration::from_millis(500),
        "it sticks with what works: {took:?}"
    );
    // The endpoint in use hangs, while the first is back.
    etcd.resume(follower);
    let in_use = (0..3)
        .find(|index| urls[1] == etcd.urls()[*index])
        .expect("an index");
    if in_use != leader {
        etcd.pause(in_use);
        let (next, took) = timed("the endpoint in use hangs", declare(&store, &s, 2, 1)).await;
        next.expect("an answer");
        assert!(took < Duration::from_secs(2), "{took:?}");
        etcd.resume(in_use);
    }
}

/// As while etcd elects a leader or waits for its disk.
#[tokio::test]
async fn a_late_answer_counts_when_the_others_are_silent() {
    let etcd = etcd::Etcd::start(1);
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let silent = listeners.each_ref().map(|one| one.local_addr().unwrap());
    let urls = format!(
        "http://{},http://{},{}",
        silent[0],
        silent[1],
        etcd.urls()[0]
    );
    let options = urls.parse::<Options>().unwrap();
    etcd.pause(0);
    let register =
        ElectionCandidate::register(&options, "/elections/late", Duration::from_secs(60));
    let wakes = async {
        sleep(Duration::from_millis(2_600)).await;
        etcd.resume(0);
    };
    let (registered, took) = timed("a lease", async { tokio::join!(register, wakes).0 }).await;
    registered.expect("an answer");
    assert!(took < BOUND, "{took:?}");
}

#[tokio::test]
async fn without_a_majority_it_is_unavailable_until_one_is_back() {
    let mut etcd = etcd::Etcd::start(3);
    let store = connect(&etcd).await;
    let s = scope("minority");
    declare(&store, &s, 1, 1).await.expect("an answer");
    etcd.kill(0);
    etcd.kill(1);
    for value in 2..4 {
        let (refused, took) = timed("one member of three", declare(&store, &s, value, 1)).await;
        assert!(
            matches!(refused, Err(AuthorityError::Unavailable(_))),
            "{refused:?}"
        );
        assert!(took < BOUND, "{took:?}");
        println!("{}", refused.unwrap_err());
    }
    etcd.restart(0);
    etcd.restart(1);
    etcd.wait_until_ready();
    declare(&store, &s, 4, 1).await.expect("well again");
}

#[tokio::test]
async fn one_member_that_hangs() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let s = scope("one");
    declare(&store, &s, 1, 1).await.expect("an answer");
    etcd.pause(0);
    let (refused, took) = timed("the only member hangs", declare(&store, &s, 2, 1)).await;
    assert!(
        matches!(refused, Err(AuthorityError::Unavailable(_))),
        "{refused:?}"
    );
    assert!(took < BOUND, "{took:?}");
    etcd.resume(0);
    declare(&store, &s, 3, 1).await.expect("well again");
}

/// The network drops a connection silently. The next attempt opens a new one; earlier requests may still arrive
/// later.
#[tokio::test]
async fn a_connection_that_leads_nowhere() {
    let etcd = etcd::Etcd::start(1);
    let address = etcd.urls()[0].strip_prefix("http://").unwrap().to_owned();
    let relay = HeldRelay::start(address.parse().unwrap());
    let store = connect_to(&format!("etcd:http://{}", relay.address())).await;
    store.enrol(CLUSTER).await.unwrap();
    let s = scope("nowhere");
    declare(&store, &s, 1, 1).await.unwrap();
    relay.hold(Direction::ToServer);
    let (next, took) = timed("a dead connection", declare(&store, &s, 5, 2)).await;
    lower(next.unwrap());
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(relay.held_bytes(Direction::ToServer) > 0);
    let other = connect(&etcd).await;
    declare(&other, &s, 7, 3).await.unwrap();
    store.forget(&[backend(1), backend(2)]).await.unwrap();
    relay.release(Direction::ToServer);
    sleep(Duration::from_millis(300)).await;
    assert_eq!(store.marks().await.unwrap()[0].1.token, token(7));
    let sessions = store.sessions().await.unwrap();
    let left: Vec<_> = sessions
        .iter()
        .map(|(_, session)| session.backend)
        .collect();
    assert_eq!(left, [backend(3)]);
}

/// A read may be stale. So every query includes a write, which advances the revision.
#[tokio::test]
async fn answers_go_through_the_log() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let s = scope("log");
    declare(&store, &s, 2, 1).await.unwrap();
    let mut before = etcd.revision(&[0]);
    let mut moved_on = |what: &str| {
        let now = etcd.revision(&[0]);
        assert!(now > before, "{what} has only read");
        before = now;
    };
    store.marks().await.unwrap();
    moved_on("marks");
    store.sessions().await.unwrap();
    moved_on("sessions");
    store.cluster().await.unwrap();
    moved_on("cluster");
    store.enrol(CLUSTER).await.unwrap();
    moved_on("enrol");
    declare(&store, &s, 1, 1).await.unwrap();
    moved_on("a stale declaration");
    declare(&store, &s, 2, 1).await.unwrap();
    moved_on("a current declaration");
    store.drained(&s, token(2).into(), &[]).await.unwrap();
    moved_on("drained");
    store.drained(&s, token(2).into(), &[]).await.unwrap();
    moved_on("drained, again");
}

/// Another handle continues while this one, with its runtime stopped, misses the changes.
#[tokio::test]
async fn what_is_known_is_only_compared() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let s = scope("old");
    let elsewhere = |value: u64| {
        let (authority, s) = (etcd.authority(), s.clone());
        let declared = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let other = connect_to(&authority).await;
                declare(&other, &s, value, 9).await.unwrap();
            });
        });
        declared.join().unwrap();
    };
    declare(&store, &s, 2, 1).await.unwrap();
    elsewhere(3);
    let drained = store.drained(&s, token(2).into(), &[]).await;
    assert_eq!(drained, Ok(Drained::Complete));
    let marks = store.marks().await.unwrap();
    assert_eq!(marks[0].1.token, token(3), "the mark does not fall");
    let left = lower(declare(&store, &s, 3, 8).await.unwrap());
    assert_eq!(left.len(), 1, "3 is not drained: {left:?}");
    elsewhere(5);
    let stale = declare(&store, &s, 4, 1).await.unwrap();
    assert!(matches!(stale, Declared::Stale { .. }), "{stale:?}");
}

#[test]
fn it_outlives_the_runtime_of_its_first_caller() {
    let etcd = etcd::Etcd::start(1);
    let home = tokio::runtime::Runtime::new().expect("a runtime");
    let store = home.block_on(connect(&etcd));
    // A caller opens the new connection, and its runtime then ends.
    let s = scope("runtimes");
    etcd.pause(0);
    let visitor = tokio::runtime::Runtime::new().expect("a runtime");
    visitor
        .block_on(declare(&store, &s, 1, 1))
        .expect_err("it hangs");
    etcd.resume(0);
    visitor
        .block_on(declare(&store, &s, 2, 1))
        .expect("an answer");
    drop(visitor);
    let (last, took) = home.block_on(timed("another runtime", declare(&store, &s, 3, 1)));
    assert!(matches!(last, Ok(Declared::Accepted { .. })), "{last:?}");
    assert!(took < Duration::from_millis(700), "{took:?}");
}

/// An unreadable record of a takeover hides no other, and gives way to new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_history_holds_up_nothing() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let mark = Mark::new(token(7), 1, "test".to_owned());
    let record = TakeoverRecord::new(None, &mark, TakeoverEnd::Complete);
    let note = async |name: &str| {
        store
            .note_takeovers(&scope(name), std::slice::from_ref(&record))
            .await
    };
    note("a").await.unwrap();
    note("b").await.unwrap();
    for (key, value) in [("a", "{]"), ("no|scope", "[]")] {
        etcd.ctl(&["put", &format!("/pgpalisade/takeovers/{key}"), value]);
    }
    let all = store.takeovers(None).await.unwrap();
    assert_eq!(all, [(scope("b"), record.clone())]);
    note("a").await.unwrap();
    assert_eq!(store.takeovers(None).await.unwrap().len(), 2);
}
