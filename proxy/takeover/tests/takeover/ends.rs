//! Sessions that a takeover ends, and what happens to their work.

use super::*;

/// One takeover ends `n` sessions with open write transactions, and nothing of them commits.
async fn ends_writers(n: usize) {
    let postgres = Postgres::start(&["max_connections=200"]).await;
    let admin = postgres.connect("postgres").await;
    ran(&admin, "CREATE TABLE t (id int)").await;
    let store = store(&postgres);
    let takeover = start(options(&postgres), &store).await.unwrap();
    let mut old = Vec::new();
    for id in 0..n {
        let (client, backend) = declared(&postgres, &takeover, "postgres", 33).await;
        ran(&client, &format!("BEGIN; INSERT INTO t VALUES ({id})")).await;
        old.push((client, backend));
    }
    assert_eq!(registered(&store).await.len(), n);
    // An idle session is ended too.
    let (_idle, idle) = declared(&postgres, &takeover, "postgres", 33).await;
    let (client, new) = joined(&postgres, &takeover, "postgres").await;
    let began = Instant::now();
    let mark = declare(&takeover, 34, new).await.unwrap();
    println!(
        "takeover over {n} sessions with open transactions: {:?}",
        began.elapsed()
    );
    assert_eq!(mark.token, token(34));
    assert_eq!(mark.raised_by, "a test via test");
    // At once, without waiting: every old transaction has ended and none can commit.
    let locks = "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND mode = 'RowExclusiveLock'";
    assert_eq!(
        count(&client, locks).await,
        0,
        "a transaction of an old session is still open"
    );
    for (client, backend) in &old {
        assert!(
            client.batch_execute("COMMIT").await.is_err(),
            "{backend} could commit"
        );
        assert!(matches!(
            declare(&takeover, 33, *backend).await,
            Err(DeclareError::Stale { .. })
        ));
    }
    assert!(declare(&takeover, 33, idle).await.is_err());
    assert_eq!(count(&client, "SELECT count(*) FROM t").await, 0);
    assert_eq!(registered(&store).await, [new]);
    let record = kept(&takeover, 34, |end| *end == TakeoverEnd::Complete).await;
    assert_eq!((record.from, record.to), (Some(token(33)), token(34)));
    assert_eq!(
        (record.raised_at, record.raised_by),
        (mark.raised_at, mark.raised_by)
    );
    let n = u64::try_from(n).unwrap();
    let work = record.work;
    assert_eq!((work.sessions, work.transactions), (n + 1, n));
    assert!((1..10_000_000).contains(&work.took_us), "{work:?}");
    assert_eq!(
        takeover.marks().mark(&Scope::default()).mark(),
        Some(token(34))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_one_writer() {
    ends_writers(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_a_hundred_writers() {
    ends_writers(100).await;
}

#[tokio::test]
async fn ends_a_long_statement() {
    let (postgres, _store, takeover) = started().await;
    let admin = postgres.connect("postgres").await;
    ran(&admin, "CREATE TABLE t (id int)").await;
    let (old, _) = declared(&postgres, &takeover, "postgres", 1).await;
    let statement = "INSERT INTO t SELECT 1 FROM pg_sleep(60)";
    let running = tokio::spawn(async move { old.batch_execute(statement).await });
    eventually(
        &admin,
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'",
        1,
    )
    .await;
    let began = Instant::now();
    let (new, _) = declared(&postgres, &takeover, "postgres", 2).await;
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        count(
            &new,
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        )
        .await,
        0
    );
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(error.code().map(|c| c.code()), Some("57P01"), "{error}");
    assert_eq!(count(&new, "SELECT count(*) FROM t").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_declares_of_one_token_wait_for_one_barrier() {
    let (postgres, store, takeover) = started().await;
    let (_old, stuck) = declared(&postgres, &takeover, "postgres", 1).await;
    let mut sessions = Vec::new();
    for _ in 0..10 {
        let (client, backend) = joined(&postgres, &takeover, "postgres").await;
        sessions.push((client, backend));
    }
    postgres.signal(Signal::STOP, stuck.pid);
    let mut declares = tokio::task::JoinSet::new();
    for (_, backend) in &sessions {
        let (takeover, backend) = (takeover.clone(), *backend);
        declares.spawn(async move { declare(&takeover, 2, backend).await });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        declares.try_join_next().is_none(),
        "admitted before the old session was gone"
    );
    postgres.signal(Signal::CONT, stuck.pid);
    for result in declares.join_all().await {
        assert_eq!(result.unwrap().token, token(2));
    }
    assert_eq!(registered(&store).await.len(), 10);
}

/// Target of a test's log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_takeover_names_the_prepared_transactions_that_outlive_it() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .finish();
    // For this thread, on which the runtime of this test runs all its tasks.
    let _guard = tracing::subscriber::set_default(subscriber);
    let (postgres, _store, takeover) = started().await;
    let (old, _) = declared(&postgres, &takeover, "postgres", 1).await;
    ran(&old, "CREATE TABLE t (id int)").await;
    ran(&old, "BEGIN; INSERT INTO t VALUES (1)").await;
    ran(&old, "PREPARE TRANSACTION 'left behind'").await;
    declared(&postgres, &takeover, "postgres", 2).await;
    let give_up = Instant::now() + Duration::from_secs(5);
    loop {
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        if text.contains("WARN") && text.contains("left behind") {
            break;
        }
        assert!(Instant::now() < give_up, "{text}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
