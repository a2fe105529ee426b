//! Declarations that name an election: the store accepts only the number of the current leader, within the same step.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{
    Authority, AuthorityError, Declaration, DeclareOutcome, Declared, Embedded, Etcd, Following,
    IfStale, Scope, Token,
};
use pgpalisade_test_servers::etcd;
use pgpalisade_test_servers::held_relay::{Direction, HeldRelay};
use pgpalisade_test_servers::machine::PATIENCE;
use pgpalisade_test_servers::postgres::Postgres;
use tokio::time::{sleep, timeout};

use crate::stage::{CLUSTER, backend, connect, connect_to, declare, scope, token};

const ELECTION: &str = "/elections/jobs";

fn elected(scope: &Scope, value: u64, pid: i32) -> Declaration {
    Declaration {
        election: Some(Arc::from(ELECTION)),
        ..Declaration::new(scope, token(value), backend(pid), CLUSTER, "test")
    }
}

/// Leader's number and mark of a refused declaration.
async fn refused(store: &Etcd, scope: &Scope, value: u64) -> (Option<u64>, Option<u64>) {
    let before = store.sessions().await.unwrap();
    let answer = store.declare(&elected(scope, value, 9)).await.unwrap();
    let found = store.sessions().await.unwrap();
    assert_eq!(found, before, "somebody is registered");
    match answer {
        Declared::NotElected { leader, mark } => {
            (leader.map(Token::get), mark.map(|mark| mark.token.get()))
        }
        other => panic!("{value}: {other:?}"),
    }
}

#[tokio::test]
async fn only_the_leader_is_accepted() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let s = scope("jobs");
    assert_eq!(refused(&store, &s, 1).await, (None, None));
    let a = etcd.stands(ELECTION, "a");
    let b = etcd.stands(ELECTION, "b");
    // Elections whose names share a prefix.
    etcd.stands("/elections/job", "z");
    etcd.stands("/elections/jobsharing", "z");
    assert!(a < b);
    for other in [1, a - 1, a + 1, b, Token::MAX] {
        assert_eq!(refused(&store, &s, other).await, (Some(a), None));
    }
    let accepted = store.declare(&elected(&s, a, 1)).await.unwrap();
    assert!(matches!(
        accepted,
        Declared::Accepted {
            outcome: DeclareOutcome::Raised,
            ..
        }
    ));
    let again = store.declare(&elected(&s, a, 2)).await.unwrap();
    assert!(matches!(
        again,
        Declared::Accepted {
            outcome: DeclareOutcome::Current,
            ..
        }
    ));
    assert_eq!(refused(&store, &s, b).await, (Some(a), Some(a)));
    // The mark is checked before the election.
    let stale = store.declare(&elected(&s, a - 1, 3)).await.unwrap();
    assert!(matches!(stale, Declared::Stale { .. }), "{stale:?}");
    // A leader stays the same if its key is written again, for example to proclaim a value.
    etcd.ctl(&["put", &format!("{ELECTION}/a"), "here"]);
    store.declare(&elected(&s, a, 1)).await.unwrap();
    etcd.leaves(ELECTION, "a");
    assert_eq!(refused(&store, &s, a).await, (Some(b), Some(a)));
    let accepted = store.declare(&elected(&s, b, 4)).await.unwrap();
    assert!(matches!(
        accepted,
        Declared::Accepted {
            outcome: DeclareOutcome::Raised,
            ..
        }
    ));
    etcd.leaves(ELECTION, "b");
    assert_eq!(refused(&store, &s, b).await, (None, Some(b)));
}

/// An election that has gone back admits nobody.
#[tokio::test]
async fn a_leader_below_the_mark_is_stale() {
    let etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let s = scope("jobs");
    declare(&store, &s, 1_000_000, 1).await.unwrap();
    let a = etcd.stands(ELECTION, "a");
    let stale = store.declare(&elected(&s, a, 2)).await.unwrap();
    assert!(matches!(&stale, Declared::Stale { mark } if mark.token == token(1_000_000)));
    // The next takeover finds a session that was only observed.
    let observed = Declaration {
        if_stale: IfStale::Register,
        ..elected(&s, a, 3)
    };
    store.declare(&observed).await.unwrap();
    let sessions = store.sessions().await.unwrap();
    assert!(
        sessions
            .iter()
            .any(|(_, session)| session.backend == backend(3))
    );
}

/// The leader has been read, and is gone before the step that would raise the mark.
#[tokio::test]
async fn a_leader_that_loses_meanwhile_raises_nothing() {
    let etcd = etcd::Etcd::start(1);
    connect(&etcd).await;
    let address = etcd.urls()[0]
        .trim_start_matches("http://")
        .parse()
        .unwrap();
    let relay = HeldRelay::start(address);
    let store = connect_to(&format!("etcd:http://{}", relay.address())).await;
    let s = scope("jobs");
    let a = etcd.stands(ELECTION, "a");
    let b = etcd.stands(ELECTION, "b");
    relay.hold(Direction::ToClient);
    let declaring = {
        let (store, s) = (store.clone(), s.clone());
        tokio::spawn(async move { store.declare(&elected(&s, a, 1)).await })
    };
    // Time for the first of the two steps; its reply is held back.
    sleep(Duration::from_millis(150)).await;
    etcd.leaves(ELECTION, "a");
    relay.release(Direction::ToClient);
    let answer = declaring.await.unwrap().unwrap();
    let leader = Some(token(b));
    assert_eq!(answer, Declared::NotElected { leader, mark: None });
    assert_eq!(store.marks().await.unwrap(), []);
}

async fn heard(following: &mut Following, leader: Option<u64>) {
    let leader = leader.map(token);
    let told = following.wait_for(|told| *told == leader);
    let told = timeout(PATIENCE, told).await;
    assert!(told.is_ok_and(|told| told.is_ok()), "no word of {leader:?}");
}

/// Survives a restart, and changes that were compacted before the member was back.
#[tokio::test]
async fn whoever_leads_is_told() {
    let mut etcd = etcd::Etcd::start(1);
    let store = connect(&etcd).await;
    let mut following = store.follow(ELECTION).expect("etcd holds elections");
    let a = etcd.stands(ELECTION, "a");
    heard(&mut following, Some(a)).await;
    let b = etcd.stands(ELECTION, "b");
    etcd.leaves(ELECTION, "a");
    heard(&mut following, Some(b)).await;
    etcd.leaves(ELECTION, "b");
    heard(&mut following, None).await;
    let c = etcd.stands(ELECTION, "c");
    heard(&mut following, Some(c)).await;
    etcd.restart(0);
    etcd.wait_until_ready();
    etcd.leaves(ELECTION, "c");
    let d = etcd.stands(ELECTION, "d");
    let now = etcd.revision(&[0]).to_string();
    etcd.ctl(&["compact", &now]);
    heard(&mut following, Some(d)).await;
    // Candidates that do not lead are not reported.
    etcd.stands(ELECTION, "e");
    etcd.leaves(ELECTION, "e");
    let f = etcd.stands(ELECTION, "f");
    etcd.leaves(ELECTION, "d");
    heard(&mut following, Some(f)).await;
}

#[tokio::test]
async fn without_elections_nobody_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let postgres = Postgres::start();
    let dsn = postgres.admin_dsn().parse().unwrap();
    let stores: [Box<dyn Authority>; 2] = [
        Box::new(Embedded::open(&dir.path().join("store")).unwrap()),
        Box::new(pgpalisade_authority::Postgres::connect(&dsn).await.unwrap()),
    ];
    for store in stores {
        store.enrol(CLUSTER).await.unwrap();
        let s = scope("jobs");
        let refused = store.declare(&elected(&s, 5, 1)).await;
        let is_away = matches!(&refused, Err(AuthorityError::Unavailable(why)) if why.contains("holds no elections"));
        assert!(is_away, "{refused:?}");
        assert_eq!(store.marks().await.unwrap(), []);
        assert!(store.follow(ELECTION).is_none());
    }
}
