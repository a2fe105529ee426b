//! Poison tokens on a real PostgreSQL: the guard refuses them, and a repair brings a poisoned scope back.

use pgpalisade_takeover::{Bound, RepairError, RepairReport, ScopeRepair, Work};

use super::*;

const WITHIN: Duration = Duration::from_secs(10);

fn shared(postgres: &Postgres) -> TakeoverOptions {
    TakeoverOptions {
        store_lock: StoreLock::Shared,
        ..options(postgres)
    }
}

async fn start(postgres: &Postgres, authority: Arc<dyn Authority>) -> Result<Takeover, StartError> {
    Takeover::start(shared(postgres), authority, CancellationToken::new()).await
}

/// A session, as the proxy knows it.
async fn session(postgres: &Postgres, takeover: &Takeover) -> (Client, Identified) {
    let (client, backend) = joined(postgres, takeover, "postgres").await;
    (client, identified(takeover, backend))
}

/// A scope at the highest token, a proxy that hears of no repair, and the session that declared the token.
async fn poisoned(postgres: &Postgres) -> (Arc<Embedded>, Takeover, (Client, Identified)) {
    let store = store(postgres);
    let takeover = start(postgres, Arc::new(Slow::deaf(&store)));
    let takeover = takeover.await.unwrap();
    let (client, identified) = session(postgres, &takeover).await;
    let declared = declare_for(&takeover, Token::MAX, identified).await;
    declared.unwrap();
    (store, takeover, (client, identified))
}

async fn repair(
    postgres: &Postgres,
    authority: &Arc<Embedded>,
    to: u64,
) -> Result<(Work, RepairReport), RepairError> {
    let authority = Arc::clone(authority) as Arc<dyn Authority>;
    let looked = ScopeRepair::look(
        shared(postgres),
        WITHIN,
        authority,
        Scope::default(),
        token(to),
    )
    .await?;
    let work = looked.work;
    let report = looked.perform("alice@db1", "a script").await?;
    Ok((work, report))
}

async fn is_alive(client: &Client) -> bool {
    client.batch_execute("SELECT 1").await.is_ok()
}

#[track_caller]
fn out_of_bounds(result: Result<Mark, DeclareError>) -> (Option<u64>, Bound) {
    match result {
        Err(DeclareError::OutOfBounds { mark, bound }) => (mark.map(|m| m.token.get()), bound),
        other => panic!("{other:?}"),
    }
}

/// A proxy that does not know of the repair takes the poison token for the mark, so to it the token is no step.
#[tokio::test]
async fn the_step_is_counted_from_the_repaired_mark_at_once() {
    let postgres = Postgres::start(&[]).await;
    let (store, takeover, (_a, a)) = poisoned(&postgres).await;
    // It is above the highest token, whatever the mark.
    let most = TokenBounds {
        max_token: Some(1_000),
        ..TokenBounds::default()
    };
    let refused = out_of_bounds(support::declare(&takeover, Token::MAX, a, most).await);
    assert_eq!(refused, (Some(Token::MAX), Bound::MaxToken(1_000)));
    repair(&postgres, &store, 34).await.unwrap();
    let (_b, b) = session(&postgres, &takeover).await;
    let step = TokenBounds {
        max_step: Some(10),
        ..TokenBounds::default()
    };
    let refused = support::declare(&takeover, Token::MAX, b, step.clone()).await;
    assert_eq!(out_of_bounds(refused), (Some(34), Bound::MaxStep(10)));
    // The refusal has updated the cache.
    support::declare(&takeover, 35, b, step).await.unwrap();
}

#[tokio::test]
async fn a_repair_ends_every_session_of_before_and_no_other() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let takeover = start(&postgres, Arc::clone(&store) as _).await.unwrap();
    let kept = takeover.marks().mark(&Scope::default());
    let (poisoned, by) = session(&postgres, &takeover).await;
    declare_for(&takeover, Token::MAX, by).await.unwrap();
    let (locked_out, leader) = session(&postgres, &takeover).await;
    let stale = declare_for(&takeover, 35, leader).await;
    assert!(matches!(stale, Err(DeclareError::Stale { .. })));
    let (work, report) = repair(&postgres, &store, 34).await.unwrap();
    assert_eq!((work, report.sessions), (Work::Repair, 1));
    assert!(!is_alive(&poisoned).await && is_alive(&locked_out).await);
    // The watch has reported it; in any case the confirmer does.
    let give_up = Instant::now() + Duration::from_secs(10);
    while let Err(error) = declare_for(&takeover, 35, leader).await {
        assert!(Instant::now() < give_up, "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(registered(&store).await, [leader.backend]);
    assert!(kept.is_retired() && !kept.is_current(token(Token::MAX)));
    assert_eq!(kept.newest().mark(), Some(token(35)));
    // Drained: a session that joins ends no other.
    let (_other, other) = session(&postgres, &takeover).await;
    declare_for(&takeover, 35, other).await.unwrap();
    assert!(is_alive(&locked_out).await);
    // Up, with all earlier sessions.
    let (_, report) = repair(&postgres, &store, 100).await.unwrap();
    assert_eq!((report.mark.incarnation.get(), report.sessions), (2, 2));
    assert!(!is_alive(&locked_out).await);
    assert_eq!(registered(&store).await, []);
    // Run once more, it is already done.
    let (work, report) = repair(&postgres, &store, 100).await.unwrap();
    assert_eq!((work, report.mark.incarnation.get()), (Work::Finish, 2));
    let unknown = ScopeRepair::look(
        shared(&postgres),
        WITHIN,
        store as _,
        Scope::new("typo").unwrap(),
        token(1),
    );
    let error = unknown.await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("no mark"), "{error}");
}

#[tokio::test]
async fn a_refusal_by_the_cache_does_not_outlive_a_repair_that_no_watch_tells() {
    let postgres = Postgres::start(&[]).await;
    let (store, takeover, _a) = poisoned(&postgres).await;
    let (_leader, leader) = session(&postgres, &takeover).await;
    repair(&postgres, &store, 34).await.unwrap();
    let refused = declare_for(&takeover, 35, leader).await;
    assert!(
        matches!(&refused, Err(DeclareError::Stale { mark }) if mark.token.get() == Token::MAX),
        "{refused:?}"
    );
    let began = Instant::now();
    while let Err(error) = declare_for(&takeover, 35, leader).await {
        assert!(began.elapsed() < Duration::from_secs(6), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("the cache was behind for {:?}", began.elapsed());
}

/// A table made by versions before incarnations is upgraded. It agrees with the authority about a repair, and exposes
/// an authority that was restored to a time before it.
#[tokio::test]
async fn the_witness_agrees_with_a_repair() {
    let postgres = Postgres::start(&[]).await;
    let admin = postgres.connect("postgres").await;
    let store = store(&postgres);
    let takeover = start(&postgres, Arc::clone(&store) as _).await.unwrap();
    let (_a, a) = session(&postgres, &takeover).await;
    declare_for(&takeover, Token::MAX, a).await.unwrap();
    let kept = async || {
        let read = "SELECT token, incarnation FROM pgpalisade.mark WHERE scope = 'default'";
        let row = admin.query_one(read, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    assert_eq!(kept().await, (i64::MAX, 0));
    let before = postgres.dir().join("before");
    drop(takeover);
    repair(&postgres, &store, 34).await.unwrap();
    assert_eq!(kept().await, (34, 1));
    let takeover = start(&postgres, Arc::clone(&store) as _).await.unwrap();
    let (_b, b) = session(&postgres, &takeover).await;
    declare_for(&takeover, 35, b).await.unwrap();
    assert_eq!(kept().await, (35, 1));
    // A witness that lags, as on a promoted replica, is updated.
    let lags = "UPDATE pgpalisade.mark SET token = 9223372036854775807, incarnation = 0 WHERE scope = 'default'";
    ran(&admin, lags).await;
    drop(takeover);
    let takeover = start(&postgres, Arc::clone(&store) as _).await.unwrap();
    assert_eq!(kept().await, (35, 1));
    drop(takeover);
    // A store that knows the scope as it was before the repair.
    let cluster = store.cluster().await.unwrap().unwrap();
    let forgetful = Arc::new(Embedded::open(&before).unwrap());
    let poison = Mark::new(token(Token::MAX), 1, "restored".to_owned());
    let marks = [(Scope::default(), poison)];
    forgetful.recover(None, cluster, &marks).await.unwrap();
    let give_up = Instant::now() + Duration::from_secs(10);
    let error = loop {
        // The lock of the first store may be held for a moment.
        match start(&postgres, Arc::clone(&forgetful) as _).await {
            Err(StartError::OtherAuthority { .. }) if Instant::now() < give_up => {}
            other => break other.unwrap_err(),
        }
    };
    assert!(
        matches!(error, StartError::AuthorityWentBack { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("35 (incarnation 1)"), "{error}");
}
