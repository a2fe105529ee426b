//! The server crashes, hangs, or ends our connections; answers are lost; the store goes back in time.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pgpalisade_authority::postgres::Options;
use pgpalisade_authority::{
    Authority, AuthorityError, Cluster, Declared, Enrolled, Mark, Postgres, TakeoverEnd,
    TakeoverRecord,
};
use tokio::task::JoinSet;

use crate::machine::{self, PATIENCE, Signal};
use crate::stage::{CLUSTER, Server, backend, connect, declare, impatient, options, scope, token};
use pgpalisade_test_servers::held_relay::{Direction, HeldRelay};
use pgpalisade_test_servers::machine::assert_says;
use pgpalisade_test_servers::postgres::{Auth, bin, unprivileged};

async fn healed(store: &Postgres, name: &str, value: u64, pid: i32) -> Declared {
    let end = Instant::now() + PATIENCE;
    loop {
        match declare(store, name, value, pid).await {
            Ok(declared) => return declared,
            Err(error) => assert!(Instant::now() < end, "not well again: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn enrolled() -> (Server, Postgres) {
    let server = Server::start();
    let store = connect(&server).await;
    store.enrol(CLUSTER).await.unwrap();
    (server, store)
}

#[track_caller]
fn is_unavailable<T: std::fmt::Debug>(answer: Result<T, AuthorityError>) {
    let error = answer.unwrap_err();
    assert!(matches!(error, AuthorityError::Unavailable(_)), "{error}");
}

fn sessions(server: &Server) -> Vec<u32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgpalisade authority'";
    let rows = server.sql(sql).into_iter().flatten();
    rows.map(|pid| pid.parse().unwrap()).collect()
}

fn terminate_sessions(server: &Server) {
    server.sql(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
         WHERE application_name = 'pgpalisade authority'",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crash_loses_nothing_that_was_answered() {
    let (mut server, store) = enrolled().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for task in 0..6_i32 {
        let (store, stop) = (store.clone(), Arc::clone(&stop));
        tasks.spawn(async move {
            let (mut answered, mut failed) = (Vec::new(), 0);
            for value in 1.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let pid = i32::try_from(value).unwrap() * 10 + task;
                let name = format!("s{}", task % 3);
                match declare(&store, &name, value, pid).await {
                    Ok(Declared::Accepted { mark, .. }) => {
                        assert_eq!(mark.token, token(value));
                        answered.push((name, value, pid));
                    }
                    Ok(Declared::Stale { .. }) => {}
                    Ok(other) => panic!("{other:?}"),
                    Err(AuthorityError::Unavailable(_)) => {
                        failed += 1;
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            (answered, failed)
        });
    }
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.crash();
        server.start_again(&[]);
        healed(&store, "healed", 1, 1).await;
    }
    stop.store(true, Ordering::SeqCst);
    let (mut answered, mut failed) = (Vec::new(), 0);
    for (acks, failures) in tasks.join_all().await {
        answered.extend(acks);
        failed += failures;
    }
    println!("{} answered, {failed} failed", answered.len());
    assert!(answered.len() > 100 && failed > 0);
    let marks: BTreeMap<String, u64> = store
        .marks()
        .await
        .unwrap()
        .into_iter()
        .map(|(s, m)| (s.to_string(), m.token.get()))
        .collect();
    let found = store.sessions().await.unwrap();
    for (name, value, pid) in answered {
        assert!(marks[&name] >= value, "{name} {value}, {marks:?}");
        let there = found
            .iter()
            .any(|(s, r)| *s == scope(&name) && r.backend == backend(pid));
        assert!(there, "session {pid} in {name} was answered and is lost");
    }
}

/// The server warns of each new transaction, and writes all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_near_a_wraparound_serves() {
    let mut server = Server::start();
    let store = connect(&server).await;
    store.enrol(CLUSTER).await.unwrap();
    server.crash_by(Signal::INT);
    // 2^31 transactions are too many. The server warns of the last 40 million, and refuses the last 3.
    let segment = 2030_u32;
    let status = server.data().join(format!("pg_xact/{segment:04X}"));
    let mut zeros = unprivileged("truncate");
    zeros.args(["--size", "256K"]).arg(status);
    let mut reset = unprivileged(bin("pg_resetwal"));
    let next = (segment << 20).to_string();
    reset.args(["-x", &next]).arg(server.data());
    for command in [&mut zeros, &mut reset] {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    server.start_again(&[]);
    // Otherwise autovacuum would soon end it.
    let mut holder = server.admin();
    holder.rows("BEGIN; LOCK TABLE pg_catalog.pg_class IN SHARE UPDATE EXCLUSIVE MODE");
    healed(&store, "s", 1, 1).await;
    for value in 2..5 {
        let declared = declare(&store, "s", value, 1).await.unwrap();
        assert!(
            matches!(declared, Declared::Accepted { .. }),
            "{declared:?}"
        );
    }
    assert!(server.log().contains("must be vacuumed within"));
}

/// A connection is reopened and its row deleted, but the answer is lost. No step was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_end_is_not_heard_of_is_no_lost_step() {
    let server = Server::start();
    let relay = HeldRelay::start(([127, 0, 0, 1], server.port()).into());
    let (host, port) = (relay.address().ip(), relay.address().port());
    let dsn = format!("host={host} port={port} user=postgres dbname=postgres");
    let options: Options = dsn.parse().unwrap();
    let options = options.with_timeout(Duration::from_secs(1));
    let store = Postgres::connect(&options).await.unwrap();
    store.enrol(CLUSTER).await.unwrap();
    declare(&store, "s", 1, 1).await.unwrap();
    let mut holder = server.admin();
    holder.rows("BEGIN");
    holder.rows("SELECT * FROM pgpalisade_authority.connections FOR UPDATE");
    terminate_sessions(&server);
    let again = store.clone();
    let declaring = tokio::spawn(async move {
        // The first declaration may use a connection that does not know of its end.
        let first = declare(&again, "s", 2, 1).await;
        first.and(declare(&again, "s", 2, 1).await)
    });
    // The answer to the deletion of the old row is held back.
    wait_for_waiting(&server);
    relay.hold(Direction::ToClient);
    holder.rows("ROLLBACK");
    let error = declaring.await.unwrap().unwrap_err();
    assert!(matches!(error, AuthorityError::Unavailable(_)), "{error}");
    let end = Instant::now() + PATIENCE;
    while server
        .sql("SELECT 1 FROM pgpalisade_authority.connections")
        .len()
        > 1
    {
        assert!(Instant::now() < end, "the row of the lost connection stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    healed(&store, "s", 3, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_is_an_error_in_time() {
    let server = Server::start();
    let store = impatient(&server).await;
    store.enrol(CLUSTER).await.unwrap();
    declare(&store, "s", 1, 1).await.unwrap();
    let mut stopped = sessions(&server);
    assert_eq!(stopped.len(), 2, "one to write and one to read");
    stopped.push(server.pid());
    for pid in &stopped {
        machine::signal(*pid, Signal::STOP);
    }
    for _ in 0..3 {
        let begin = Instant::now();
        is_unavailable(declare(&store, "s", 2, 1).await);
        is_unavailable(store.marks().await);
        let took = begin.elapsed();
        assert!(
            took < Duration::from_secs(4),
            "two calls of a second took {took:?}"
        );
    }
    for pid in &stopped {
        machine::signal(*pid, Signal::CONT);
    }
    let begin = Instant::now();
    healed(&store, "s", 3, 1).await;
    println!("well again after {:?}", begin.elapsed());
    assert_eq!(store.marks().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_ended_are_made_anew() {
    let (server, store) = enrolled().await;
    for round in 1..=3 {
        terminate_sessions(&server);
        healed(&store, "s", round, 1).await;
        assert_eq!(store.sessions().await.unwrap().len(), 1);
    }
    let left = server.value("SELECT count(*) FROM pgpalisade_authority.connections");
    assert_eq!(left, "1", "the rows of ended connections are removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_somebody_holds_is_an_error_in_time() {
    let server = Server::start();
    let store = impatient(&server).await;
    store.enrol(CLUSTER).await.unwrap();
    declare(&store, "held", 1, 1).await.unwrap();
    let mut holder = server.admin();
    holder.rows("BEGIN");
    holder.rows("SELECT * FROM pgpalisade_authority.marks FOR UPDATE");
    let begin = Instant::now();
    is_unavailable(declare(&store, "held", 2, 1).await);
    assert!(begin.elapsed() < Duration::from_secs(3));
    drop(holder);
    healed(&store, "held", 3, 1).await;
}

fn wait_for_waiting(server: &Server) {
    machine::wait_until("a step that waits for a lock", || {
        let waiting = server.value(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
             AND application_name = 'pgpalisade authority'",
        );
        waiting == "1"
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_step_that_gave_way_in_a_deadlock_is_taken_again() {
    let (server, store) = enrolled().await;
    for name in ["a", "b", "z"] {
        declare(&store, name, 1, 1).await.unwrap();
    }
    let lock = |name: &str| {
        format!("SELECT 1 FROM pgpalisade_authority.marks WHERE scope = '{name}' FOR UPDATE")
    };
    let (mut first, mut second) = (server.admin(), server.admin());
    first.rows("BEGIN");
    first.rows(&lock("z"));
    second.rows("BEGIN");
    // Makes the server abort the store's session.
    second.rows("SET deadlock_timeout = '60s'");
    second.rows(&lock("b"));
    let mut calls = JoinSet::new();
    let spawn = |calls: &mut JoinSet<_>, name: &'static str| {
        let store = store.clone();
        calls.spawn(async move { declare(&store, name, 2, 1).await });
    };
    // While the declaration for z waits, the other two queue up and become one step.
    spawn(&mut calls, "z");
    wait_for_waiting(&server);
    spawn(&mut calls, "a");
    spawn(&mut calls, "b");
    tokio::time::sleep(Duration::from_millis(200)).await;
    first.rows("ROLLBACK");
    machine::wait_until("the step on a and b", || {
        // While the step holds a, no other session gets it.
        let free = server.sql(&format!("{} SKIP LOCKED", lock("a")));
        free.is_empty()
    });
    wait_for_waiting(&server);
    second.rows(&lock("a"));
    second.rows("COMMIT");
    for answer in calls.join_all().await {
        answer.unwrap();
    }
    assert!(server.log().contains("deadlock detected"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_timeline_waits_for_declarations_that_have_begun() {
    let server = Server::start();
    let (a, b) = (connect(&server).await, connect(&server).await);
    a.enrol(CLUSTER).await.unwrap();
    declare(&a, "s", 1, 1).await.unwrap();
    let mut holder = server.admin();
    holder.rows("BEGIN");
    holder.rows("SELECT 1 FROM pgpalisade_authority.marks FOR UPDATE");
    let begun = tokio::spawn({
        let a = a.clone();
        async move { declare(&a, "s", 2, 1).await }
    });
    wait_for_waiting(&server);
    let promoted = Cluster {
        timeline: 2,
        ..CLUSTER
    };
    let enrolling = tokio::spawn(async move { b.enrol(promoted).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(
        !enrolling.is_finished(),
        "answered before a declaration of the old timeline is"
    );
    holder.rows("COMMIT");
    let declared = begun.await.unwrap().unwrap();
    assert!(
        matches!(declared, Declared::Accepted { .. }),
        "{declared:?}"
    );
    assert_eq!(enrolling.await.unwrap(), Ok(Enrolled::Accepted));
    let recorded = Some(promoted);
    assert_eq!(
        declare(&a, "s", 3, 1).await,
        Ok(Declared::OtherCluster { recorded })
    );
}

#[tokio::test]
async fn a_silent_host_leaves_time_for_the_next() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start();
    let ports = (silent.local_addr().unwrap().port(), server.port());
    let dsn = format!(
        "host=127.0.0.1,127.0.0.1 port={},{} user=postgres dbname=postgres",
        ports.0, ports.1
    );
    let options: Options = dsn.parse().unwrap();
    let store = Postgres::connect(&options.with_timeout(Duration::from_secs(2))).await;
    declare(&store.unwrap(), "s", 1, 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_no_standby_has_is_not_answered() {
    let mut server = Server::start();
    drop(connect(&server).await);
    server.crash();
    // The server's default would not even wait for its disk.
    let wanted = ["synchronous_standby_names=nobody", "synchronous_commit=off"];
    server.start_again(&wanted);
    let slow = options(&server).with_timeout(Duration::from_secs(2));
    let error = Postgres::connect(&slow).await.unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");
    // The wait is cut short: the server reports its commit, and warns.
    let connecting = tokio::spawn({
        let options = options(&server).with_timeout(Duration::from_secs(20));
        async move { Postgres::connect(&options).await }
    });
    machine::wait_until("the end of a commit whose wait was cut short", || {
        server.sql(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' \
             AND application_name = 'pgpalisade authority'",
        );
        connecting.is_finished()
    });
    let error = connecting.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("may not be durable"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_gone_back_is_found_out() {
    let (mut server, store) = enrolled().await;
    declare(&store, "s", 1, 1).await.unwrap();
    server.crash();
    let (data, kept) = (server.data(), server.socket_dir().join("kept"));
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
        assert!(copied.unwrap().success());
    };
    copy(&data, &kept);
    server.start_again(&[]);
    healed(&store, "s", 2, 1).await;
    declare(&store, "s", 3, 1).await.unwrap();
    server.crash();
    std::fs::remove_dir_all(&data).unwrap();
    copy(&kept, &data);
    server.start_again(&[]);
    let error = loop {
        match declare(&store, "s", 4, 1).await {
            Err(AuthorityError::Unavailable(_)) => {}
            other => break other.unwrap_err(),
        }
    };
    assert!(matches!(error, AuthorityError::WentBack(_)), "{error}");
    // Every call fails until an operator has checked the store and restarts.
    let again = store.enrol(CLUSTER).await.unwrap_err();
    assert!(matches!(again, AuthorityError::WentBack(_)), "{again}");
    let anew = connect(&server).await;
    assert_eq!(anew.marks().await.unwrap()[0].1.token, token(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_store_in_its_place_is_damage() {
    let (server, store) = enrolled().await;
    server.sql("DROP SCHEMA pgpalisade_authority CASCADE");
    let error = declare(&store, "s", 1, 1).await.unwrap_err();
    assert!(matches!(error, AuthorityError::Damaged(_)), "{error}");
    let other = connect(&server).await;
    assert_ne!(store.identity(), other.identity());
    other.enrol(CLUSTER).await.unwrap();
    for round in 0..2 {
        let error = declare(&store, "s", 1, 1).await.unwrap_err();
        assert!(
            matches!(error, AuthorityError::Damaged(_)),
            "{round}: {error}"
        );
        terminate_sessions(&server);
    }
    let mut error = store.marks().await.unwrap_err();
    if matches!(error, AuthorityError::Unavailable(_)) {
        error = store.marks().await.unwrap_err();
    }
    assert!(matches!(error, AuthorityError::Damaged(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declarations_that_arrive_together_share_a_commit() {
    let (server, store) = enrolled().await;
    let steps = "SELECT sum(steps) FROM pgpalisade_authority.connections";
    let before: u32 = server.value(steps).parse().unwrap();
    let mut calls = JoinSet::new();
    for pid in 1..=50 {
        let store = store.clone();
        calls.spawn(async move { declare(&store, &format!("s{}", pid % 3), 1, pid).await });
    }
    for answer in calls.join_all().await {
        answer.unwrap();
    }
    let taken = server.value(steps).parse::<u32>().unwrap() - before;
    println!("50 declarations in {taken} commits");
    assert!(taken <= 10, "{taken} commits for 50 declarations");
    assert_eq!(store.sessions().await.unwrap().len(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_error_shows_the_password() {
    let server = Server::start_with(Auth::Scram, &[]);
    server.sql("CREATE ROLE app LOGIN PASSWORD 'right'");
    let dsn = format!("//app:hunter2@127.0.0.1:{}/postgres", server.port());
    let error = Postgres::connect(&dsn.parse().unwrap()).await.unwrap_err();
    let said = format!("{error} {error:?}");
    assert!(said.contains("password authentication failed"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    // A closed port, and a server that does not answer.
    let closed = format!("host=127.0.0.1 port={} user=u", machine::free_port());
    let error = Postgres::connect(&closed.parse().unwrap())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dsn = format!(
        "host=127.0.0.1 port={} user=u",
        silent.local_addr().unwrap().port()
    );
    let options: Options = dsn.parse().unwrap();
    let begin = Instant::now();
    let options = options.with_timeout(Duration::from_millis(500));
    let error = Postgres::connect(&options).await.unwrap_err();
    assert_says(&error.to_string(), "no connection within");
    assert!(begin.elapsed() < Duration::from_secs(3));
}

/// An unreadable history hides no other, and can be replaced.
#[tokio::test]
async fn a_damaged_history_holds_up_nothing() {
    let server = Server::start();
    let store = connect(&server).await;
    let mark = Mark::new(token(7), 1, "test".to_owned());
    let record = TakeoverRecord::new(None, &mark, TakeoverEnd::Complete);
    for name in ["a", "b"] {
        store
            .note_takeovers(&scope(name), std::slice::from_ref(&record))
            .await
            .unwrap();
    }
    server.sql("UPDATE pgpalisade_authority.takeovers SET history = '{]' WHERE scope = 'a'");
    let all = store.takeovers(None).await.unwrap();
    assert_eq!(all, [(scope("b"), record.clone())]);
    store
        .note_takeovers(&scope("a"), std::slice::from_ref(&record))
        .await
        .unwrap();
    assert_eq!(store.takeovers(None).await.unwrap().len(), 2);
}
