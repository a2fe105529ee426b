//! A takeover that cannot finish, or whose caller goes away, and how it continues.

use super::*;

/// A short time limit.
const IMPATIENT: Duration = Duration::from_millis(800);

/// An old session that cannot end because its process is stopped, and a new one.
struct Stuck {
    postgres: Postgres,
    store: Arc<Embedded>,
    takeover: Takeover,
    stuck: Backend,
    new: Backend,
    client: Client,
    _old: Client,
}

impl Stuck {
    async fn start() -> Self {
        let postgres = Postgres::start(&[]).await;
        let store = store(&postgres);
        let options = TakeoverOptions {
            timeout: IMPATIENT,
            ..options(&postgres)
        };
        let takeover = start(options, &store).await.unwrap();
        let (old, stuck) = declared(&postgres, &takeover, "postgres", 1).await;
        postgres.signal(Signal::STOP, stuck.pid);
        let (client, new) = joined(&postgres, &takeover, "postgres").await;
        Self {
            postgres,
            store,
            takeover,
            stuck,
            new,
            client,
            _old: old,
        }
    }
}

#[tokio::test]
async fn a_takeover_that_cannot_finish_is_refused_until_a_later_one_does() {
    let Stuck {
        postgres,
        store,
        takeover,
        stuck,
        new,
        ..
    } = Stuck::start().await;
    let timeout = IMPATIENT;
    let began = Instant::now();
    let error = declare(&takeover, 2, new).await.unwrap_err();
    let took = began.elapsed();
    assert!(
        matches!(&error, DeclareError::Incomplete { left, .. } if left == &[stuck]),
        "{error}"
    );
    assert!(
        took >= timeout && took < timeout + Duration::from_millis(400),
        "{took:?}"
    );
    // The client gets the same reason as the record, which the log has too.
    let DeclareError::Incomplete { why, .. } = error else {
        unreachable!("checked above")
    };
    assert!(why.starts_with("told to end, but still there: "), "{why}");
    kept(&takeover, 2, |end| {
        *end == TakeoverEnd::Incomplete(why.clone())
    })
    .await;
    // Not drained, so an equal token is not admitted either, and a lower one is stale.
    let error = declare(&takeover, 2, new).await.unwrap_err();
    assert!(
        matches!(&error, DeclareError::Incomplete { left, .. } if left == &[stuck]),
        "{error}"
    );
    assert!(matches!(
        declare(&takeover, 1, new).await,
        Err(DeclareError::Stale { .. })
    ));
    let is_stuck = |end: &TakeoverEnd| matches!(end, TakeoverEnd::Incomplete(why) if why.contains("server process"));
    let first = kept(&takeover, 2, is_stuck).await;
    assert_eq!((first.from, first.work.sessions), (Some(token(1)), 0));
    postgres.signal(Signal::CONT, stuck.pid);
    assert_eq!(declare(&takeover, 2, new).await.unwrap().token, token(2));
    assert_eq!(registered(&store).await, [new]);
    let whole = kept(&takeover, 2, |end| *end == TakeoverEnd::Complete).await;
    assert_eq!((whole.from, whole.work.sessions), (Some(token(1)), 1));
    assert!(whole.work.took_us >= 700_000, "{whole:?}");
}

/// The old session has ended, and the reaper has noticed, before the leader comes back.
#[tokio::test]
async fn a_takeover_that_nobody_has_to_finish_is_kept_as_complete() {
    let Stuck {
        postgres,
        store,
        takeover,
        stuck,
        client,
        new,
        ..
    } = Stuck::start().await;
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

/// Two proxies on one store: the one that raised the mark is gone, and the other finishes its barrier.
#[tokio::test]
async fn any_proxy_finishes_a_barrier() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let shared = TakeoverOptions {
        store_lock: StoreLock::Shared,
        ..options(&postgres)
    };
    let one = start(shared.clone(), &store).await.unwrap();
    let two = start(shared, &store).await.unwrap();
    let (old, _) = declared(&postgres, &one, "postgres", 1).await;
    // A proxy that raised the mark and then stopped for good.
    let client = postgres.connect("postgres").await;
    let raiser = identify(&one, &client).await.unwrap();
    let scope = Scope::default();
    let raise = Declaration::new(&scope, token(2), raiser, one.cluster().unwrap(), "");
    store.declare(&raise).await.unwrap();
    ran(&old, "SELECT 1").await;
    let (_new, new) = declared(&postgres, &two, "postgres", 2).await;
    assert!(old.batch_execute("SELECT 1").await.is_err());
    let mut expect = [raiser, new];
    expect.sort_unstable();
    assert_eq!(registered(&store).await, expect);
    // The watch has updated its cache, though none of its sessions has declared since.
    let give_up = Instant::now() + Duration::from_secs(10);
    while one.marks().mark(&scope).mark() != Some(token(2)) {
        assert!(Instant::now() < give_up, "the watch tells nothing");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(matches!(
        declare(&one, 1, raiser).await,
        Err(DeclareError::Stale { .. })
    ));
}
