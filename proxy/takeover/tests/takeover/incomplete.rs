//! A takeover that cannot finish, or whose caller goes away, and how it continues.

use super::*;

/// The old session has ended, and the reaper has noticed, before the leader comes back.
#[tokio::test]
async fn a_takeover_that_nobody_has_to_finish_is_kept_as_complete() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let options = TakeoverOptions {
        timeout: Duration::from_millis(800),
        ..options(&postgres)
    };
    let takeover = start(options, &store).await.unwrap();
    let (_old, stuck) = declared(&postgres, &takeover, "postgres", 1).await;
    postgres.signal(Signal::STOP, stuck.pid);
    let (client, new) = joined(&postgres, &takeover, "postgres").await;
    declare(&takeover, 2, new).await.unwrap_err();
    kept(&takeover, 2, |end| *end != TakeoverEnd::Complete).await;
    postgres.signal(Signal::CONT, stuck.pid);
    let gone = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {}",
        stuck.pid
    );
    eventually(&client, &gone, 0).await;
    store.forget(&[stuck]).await.unwrap();
    declare(&takeover, 2, new).await.unwrap();
    let whole = kept(&takeover, 2, |end| *end == TakeoverEnd::Complete).await;
    assert_eq!(whole.from, Some(token(1)));
}

/// The caller goes away before the authority has answered, or in the middle of the barrier.
#[tokio::test]
async fn a_caller_that_goes_away_does_not_stop_its_takeover() {
    let (postgres, store, takeover) = started().await;
    let (mut old, mut stuck) = declared(&postgres, &takeover, "postgres", 1).await;
    for (value, patience) in [(2, Duration::ZERO), (3, Duration::from_millis(200))] {
        let (client, new) = joined(&postgres, &takeover, "postgres").await;
        postgres.signal(Signal::STOP, stuck.pid);
        let dropped = tokio::time::timeout(patience, declare(&takeover, value, new)).await;
        assert!(
            dropped.is_err(),
            "it should still wait for the stopped session"
        );
        postgres.signal(Signal::CONT, stuck.pid);
        eventually_registered(&store, &[new]).await;
        assert!(old.batch_execute("SELECT 1").await.is_err());
        (old, stuck) = (client, new);
    }
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
