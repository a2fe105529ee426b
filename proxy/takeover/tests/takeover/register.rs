//! Sessions that stay on the register, and sessions that leave it.

use super::*;

#[tokio::test]
async fn the_reaper_removes_only_what_is_gone() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let reap_every = Duration::from_millis(100);
    let takeover = start(
        TakeoverOptions {
            reap_every,
            ..options(&postgres)
        },
        &store,
    )
    .await
    .unwrap();
    let (_alive, alive) = declared(&postgres, &takeover, "postgres", 1).await;
    let (gone, gone_backend) = declared(&postgres, &takeover, "postgres", 1).await;
    let reused = Backend {
        started_us: alive.started_us + 1,
        ..alive
    };
    declare(&takeover, 1, reused).await.unwrap();
    assert!(registered(&store).await.contains(&gone_backend));
    drop(gone);
    eventually_registered(&store, &[alive]).await;
    tokio::time::sleep(reap_every * 5).await;
    assert_eq!(registered(&store).await, [alive]);
}

/// A store restored to a copy without a session is found out even if no proxy was started since. The epoch rises
/// after a session has joined, and stays if none has.
#[tokio::test]
async fn the_epoch_rises_once_sessions_have_joined() {
    let postgres = Postgres::start(&[]).await;
    let (store, admin) = (store(&postgres), postgres.connect("postgres").await);
    let reap_every = Duration::from_millis(50);
    let options = TakeoverOptions {
        reap_every,
        ..options(&postgres)
    };
    let takeover = start(options.clone(), &store).await.unwrap();
    let epoch = async || {
        let kept = store.mark(&Scope::epoch()).await.unwrap().unwrap();
        let seen = "SELECT token FROM pgpalisade.mark WHERE scope = 'pgpalisade.epoch'";
        (kept.token.get(), count(&admin, seen).await)
    };
    assert_eq!(epoch().await, (1, 1));
    let (_session, session) = declared(&postgres, &takeover, "postgres", 1).await;
    let give_up = Instant::now() + Duration::from_secs(10);
    while epoch().await != (2, 2) {
        assert!(Instant::now() < give_up, "{:?}", epoch().await);
        tokio::time::sleep(reap_every).await;
    }
    tokio::time::sleep(reap_every * 5).await;
    assert_eq!(epoch().await, (2, 2));
    assert_eq!(registered(&store).await, [session]);
    drop(takeover);
    let _takeover = start(options, &store).await.unwrap();
    assert_eq!(epoch().await, (3, 3));
}
