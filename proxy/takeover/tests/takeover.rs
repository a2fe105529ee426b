//! Takeovers on a real PostgreSQL: old sessions end and commit nothing, and what cannot be confirmed is
//! refused.
#![expect(clippy::unwrap_used, reason = "tests")]

#[expect(unreachable_pub, reason = "shared by the test binaries of this crate")]
mod support;

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pgpalisade_authority::{
    Answer, Authority, AuthorityId, Backend, Cluster, Declaration, Declared, Drained, Embedded,
    Enrolled, IfStale, LeaseId, LeaseStep, Leased, Mark, Rank, Registered, RepairRequest, Repaired,
    Scope, TakeoverEnd, TakeoverRecord, Token, Watch,
};
use pgpalisade_policies::TokenBounds;
use pgpalisade_takeover::{
    BackendFault, DeclareError, Identified, Purpose, StartError, StoreLock, Takeover,
    TakeoverOptions, Terms, Trace,
};
use pgpalisade_tests::machine::Signal;
use support::Postgres;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

fn token(value: u64) -> Token {
    Token::new(value).unwrap()
}

fn options(postgres: &Postgres) -> TakeoverOptions {
    TakeoverOptions::new(postgres.config("postgres"), "test".to_owned())
}

fn store(postgres: &Postgres) -> Arc<Embedded> {
    Arc::new(Embedded::open(&postgres.dir().join("authority")).unwrap())
}

async fn start(options: TakeoverOptions, store: &Arc<Embedded>) -> Result<Takeover, StartError> {
    Takeover::start(options, Arc::clone(store) as _, CancellationToken::new()).await
}

async fn declare(takeover: &Takeover, value: u64, backend: Backend) -> Result<Mark, DeclareError> {
    declare_for(takeover, value, identified(takeover, backend)).await
}

async fn declare_for(
    takeover: &Takeover,
    value: u64,
    session: Identified,
) -> Result<Mark, DeclareError> {
    takeover
        .declare(
            Declaration::new(
                &Scope::default(),
                token(value),
                session.backend,
                session.cluster,
                "a test",
            ),
            Terms {
                purpose: Purpose::Admit,
                bounds: TokenBounds::default(),
            },
            takeover.deadline(),
        )
        .await
}

/// A session on the cluster that the proxy is connected to.
fn identified(takeover: &Takeover, backend: Backend) -> Identified {
    let cluster = takeover.cluster().unwrap();
    Identified { backend, cluster }
}

/// As a session with this pid that has left a trace.
async fn found(takeover: &Takeover, pid: i32, trace: Trace) -> Result<Backend, DeclareError> {
    let found = takeover.identify(pid, trace, takeover.deadline()).await;
    found.map(|found| found.backend)
}

async fn identify(takeover: &Takeover, session: &Client) -> Result<Backend, DeclareError> {
    let (pid, trace) = (pid(session).await, Trace::random());
    session.batch_execute(trace.text()).await.unwrap();
    found(takeover, pid, trace).await
}

async fn pid(client: &Client) -> i32 {
    client
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0)
}

/// A session of `user` that has declared a token.
async fn declared(
    postgres: &Postgres,
    takeover: &Takeover,
    user: &str,
    value: u64,
) -> (Client, Backend) {
    let client = postgres.connect(user).await;
    let backend = identify(takeover, &client).await.unwrap();
    declare(takeover, value, backend).await.unwrap();
    (client, backend)
}

async fn registered(store: &Embedded) -> Vec<Backend> {
    let mut all: Vec<Backend> = store
        .sessions()
        .await
        .unwrap()
        .into_iter()
        .map(|(_, r)| r.backend)
        .collect();
    all.sort_unstable();
    all
}

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Waits until `sql` counts to `expect`.
async fn eventually(client: &Client, sql: &str, expect: i64) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while count(client, sql).await != expect {
        assert!(Instant::now() < give_up, "{sql} is not {expect}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn eventually_registered(store: &Embedded, expect: &[Backend]) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while registered(store).await != expect {
        assert!(
            Instant::now() < give_up,
            "{:?} is not {expect:?}",
            registered(store).await
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What is kept of the takeover by this token, the last one, once it has ended like this.
async fn kept(
    takeover: &Takeover,
    to: u64,
    is_so: impl Fn(&TakeoverEnd) -> bool,
) -> TakeoverRecord {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        let all = takeover.history(takeover.deadline());
        match all.await.unwrap().into_iter().next() {
            Some((_, last)) if last.to == token(to) && is_so(&last.end) => return last,
            other => assert!(Instant::now() < give_up, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// `n` sessions with open write transactions are ended by one takeover, and nothing of them commits.
async fn ends_writers(n: usize) {
    let postgres = Postgres::start(&["max_connections=200"]).await;
    let admin = postgres.connect("postgres").await;
    admin
        .batch_execute("CREATE TABLE t (id int)")
        .await
        .unwrap();
    let store = store(&postgres);
    let takeover = start(options(&postgres), &store).await.unwrap();
    let mut old = Vec::new();
    for id in 0..n {
        let (client, backend) = declared(&postgres, &takeover, "postgres", 33).await;
        client
            .batch_execute(&format!("BEGIN; INSERT INTO t VALUES ({id})"))
            .await
            .unwrap();
        old.push((client, backend));
    }
    assert_eq!(registered(&store).await.len(), n);
    // One that does nothing is ended too.
    let (_idle, idle) = declared(&postgres, &takeover, "postgres", 33).await;
    let client = postgres.connect("postgres").await;
    let new = identify(&takeover, &client).await.unwrap();
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
        takeover.cells().cell(&Scope::default()).mark(),
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
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let takeover = start(options(&postgres), &store).await.unwrap();
    let admin = postgres.connect("postgres").await;
    admin
        .batch_execute("CREATE TABLE t (id int)")
        .await
        .unwrap();
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

#[tokio::test]
async fn a_pid_with_another_start_is_another_session() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let takeover = start(options(&postgres), &store).await.unwrap();
    let bystander = postgres.connect("postgres").await;
    let live = identify(&takeover, &bystander).await.unwrap();
    // As if an old session had had the pid before.
    let former = Backend {
        started_us: live.started_us - 1,
        ..live
    };
    declare(&takeover, 1, former).await.unwrap();
    let (_new, new) = declared(&postgres, &takeover, "postgres", 2).await;
    assert_eq!(pid(&bystander).await, live.pid, "the bystander was ended");
    assert_eq!(
        registered(&store).await,
        [new],
        "the former session is gone"
    );
}

#[tokio::test]
async fn missing_rights_are_named_with_the_grant() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let admin = postgres.connect("postgres").await;
    let weak = || TakeoverOptions {
        control: postgres.config("Weak").into(),
        ..options(&postgres)
    };
    admin
        .batch_execute("CREATE ROLE \"Weak\" LOGIN")
        .await
        .unwrap();
    let error = start(weak(), &store).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, StartError::Rights { .. }), "{text}");
    let grant = text.split_once("superuser: ").unwrap().1.to_owned();
    assert_eq!(
        grant,
        "GRANT pg_signal_backend, pg_read_all_stats TO \"Weak\""
    );
    admin
        .batch_execute("GRANT pg_signal_backend TO \"Weak\"")
        .await
        .unwrap();
    let text = start(weak(), &store).await.unwrap_err().to_string();
    assert!(text.contains("GRANT pg_read_all_stats TO"), "{text}");
    admin.batch_execute(&grant).await.unwrap();
    let takeover = start(weak(), &store).await.unwrap();
    // The rights suffice for ordinary roles.
    admin.batch_execute("CREATE ROLE app LOGIN").await.unwrap();
    let (old, _) = declared(&postgres, &takeover, "app", 1).await;
    declared(&postgres, &takeover, "app", 2).await;
    assert!(old.batch_execute("SELECT 1").await.is_err());
    // They do not for superusers.
    let (old, left) = declared(&postgres, &takeover, "postgres", 2).await;
    let client = postgres.connect("app").await;
    let new = identify(&takeover, &client).await.unwrap();
    let began = Instant::now();
    match declare(&takeover, 3, new).await.unwrap_err() {
        DeclareError::Incomplete {
            left: found, why, ..
        } => {
            assert!(found.contains(&left), "{found:?}");
            assert!(why.contains("superuser"), "{why}");
        }
        other => panic!("{other}"),
    }
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "a refusal does not wait"
    );
    old.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn hidden_and_unknown_backends_are_refused() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let admin = postgres.connect("postgres").await;
    let grants = "CREATE ROLE c LOGIN; GRANT pg_signal_backend, pg_read_all_stats TO c";
    admin.batch_execute(grants).await.unwrap();
    let reap_every = Duration::from_millis(50);
    let control = TakeoverOptions {
        control: postgres.config("c").into(),
        reap_every,
        ..options(&postgres)
    };
    let takeover = start(control, &store).await.unwrap();
    let fault = |error: DeclareError| match error {
        DeclareError::Backend { why, .. } => why,
        other => panic!("{other}"),
    };
    // A pooler shows pids of its own.
    let unknown = found(&takeover, i32::MAX, Trace::random()).await;
    let unknown = unknown.unwrap_err();
    assert!(unknown.to_string().contains("pooler"), "{unknown}");
    assert_eq!(fault(unknown), BackendFault::Unknown);
    // The pid is there, but it is not of the session that has left the trace.
    let other = found(&takeover, pid(&admin).await, Trace::random()).await;
    assert_eq!(fault(other.unwrap_err()), BackendFault::Other);
    let quiet = postgres.connect("postgres").await;
    quiet
        .batch_execute("SET track_activities = off")
        .await
        .unwrap();
    let untracked = identify(&takeover, &quiet).await.unwrap_err();
    assert!(
        untracked.to_string().contains("track_activities"),
        "{untracked}"
    );
    assert_eq!(fault(untracked), BackendFault::Untracked);
    let (client, backend) = declared(&postgres, &takeover, "postgres", 1).await;
    admin
        .batch_execute("REVOKE pg_read_all_stats FROM c")
        .await
        .unwrap();
    let hidden = identify(&takeover, &client).await.unwrap_err();
    assert!(hidden.to_string().contains("pg_read_all_stats"), "{hidden}");
    assert_eq!(fault(hidden), BackendFault::Hidden);
    // What is hidden is not gone: the reaper leaves it.
    tokio::time::sleep(reap_every * 10).await;
    assert_eq!(registered(&store).await, [backend]);
}

#[tokio::test]
async fn a_second_authority_is_refused_and_both_are_named() {
    let postgres = Postgres::start(&[]).await;
    let first = store(&postgres);
    let second = Arc::new(Embedded::open(&postgres.dir().join("second")).unwrap());
    let admin = postgres.connect("postgres").await;
    admin.batch_execute("CREATE DATABASE other").await.unwrap();
    let impatient = |store_lock| TakeoverOptions {
        lock_wait: Duration::from_millis(300),
        store_lock,
        ..options(&postgres)
    };
    for kind in [StoreLock::Exclusive, StoreLock::Shared] {
        let takeover = start(impatient(kind), &first).await.unwrap();
        for database in ["postgres", "other"] {
            let mut elsewhere = impatient(kind);
            elsewhere.control.config.dbname(database);
            let error = start(elsewhere.clone(), &second).await.unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, StartError::OtherAuthority { .. }), "{text}");
            assert!(text.contains(&second.identity().to_string()), "{text}");
            assert!(
                text.contains(&format!("{:08x}", first.identity().short())),
                "{text}"
            );
            assert!(text.contains("pgpalisade control"), "{text}");
            // The same store: a second proxy is welcome only where the store is shared.
            match (kind, start(elsewhere, &first).await) {
                (StoreLock::Exclusive, Err(StartError::Taken { holder, .. })) => {
                    assert_eq!(
                        holder.application_name.as_deref(),
                        Some("pgpalisade control")
                    );
                }
                (StoreLock::Shared, Ok(_)) => {}
                (_, other) => panic!("{kind:?} {database}: {other:?}"),
            }
        }
        drop(takeover);
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        eventually(&admin, locks, 0).await;
    }
    // One that goes away in time is waited for.
    let takeover = start(impatient(StoreLock::Exclusive), &first)
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let (options, second) = (options(&postgres), Arc::clone(&second));
        async move { start(options, &second).await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished());
    drop(takeover);
    waiting.await.unwrap().unwrap();
}

/// Gives up soon.
const IMPATIENT: Duration = Duration::from_millis(800);

/// An old session that cannot end, for its process is stopped, and a new one.
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
        let client = postgres.connect("postgres").await;
        let new = identify(&takeover, &client).await.unwrap();
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
    // Not drained: an equal token is not admitted either, and a lower one is stale.
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

/// The old session has ended by itself, and the reaper has found so, before the leader comes back.
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

/// A scope whose mark rises all the time costs the authority no more than a few steps a second.
#[tokio::test]
async fn takeovers_of_a_busy_scope_are_noted_together() {
    let postgres = Postgres::start(&[]).await;
    let counting = Arc::new(Slow {
        store: store(&postgres),
        declare: Duration::ZERO,
        tells: true,
        notes: AtomicUsize::default(),
    });
    let authority = Arc::clone(&counting) as _;
    let started = Takeover::start(options(&postgres), authority, CancellationToken::new()).await;
    let takeover = started.unwrap();
    let client = postgres.connect("postgres").await;
    let backend = identify(&takeover, &client).await.unwrap();
    let began = Instant::now();
    for value in 1..=100 {
        declare(&takeover, value, backend).await.unwrap();
    }
    let took = began.elapsed();
    kept(&takeover, 100, |end| *end == TakeoverEnd::Complete).await;
    let notes = counting.notes.load(Ordering::Relaxed);
    let most = 2 + usize::try_from(took.as_millis() / 250).unwrap();
    assert!(notes <= most, "{notes} in {took:?}");
}

/// The caller goes away before the authority has answered, or in the middle of the barrier.
#[tokio::test]
async fn a_caller_that_goes_away_does_not_stop_its_takeover() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let takeover = start(options(&postgres), &store).await.unwrap();
    let (mut old, mut stuck) = declared(&postgres, &takeover, "postgres", 1).await;
    for (value, patience) in [(2, Duration::ZERO), (3, Duration::from_millis(200))] {
        let client = postgres.connect("postgres").await;
        let new = identify(&takeover, &client).await.unwrap();
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
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let takeover = start(options(&postgres), &store).await.unwrap();
    let (_old, stuck) = declared(&postgres, &takeover, "postgres", 1).await;
    let mut sessions = Vec::new();
    for _ in 0..10 {
        let client = postgres.connect("postgres").await;
        let backend = identify(&takeover, &client).await.unwrap();
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

/// A store that is restored to a copy without a session is found out also where no proxy was started since: the epoch
/// rises after a session has joined, and stays where none has.
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

/// Everything of the proxy goes without a word; the server session of its client stays. The next raise,
/// after a start on
/// the same file, ends it.
#[tokio::test]
async fn sessions_of_a_killed_proxy_are_ended_by_the_next_takeover() {
    let postgres = Postgres::start(&[]).await;
    let first = store(&postgres);
    let takeover = start(options(&postgres), &first).await.unwrap();
    let (old, old_backend) = declared(&postgres, &takeover, "postgres", 1).await;
    old.batch_execute("CREATE TABLE t (id int)").await.unwrap();
    old.batch_execute("BEGIN; INSERT INTO t VALUES (1)")
        .await
        .unwrap();
    drop((takeover, first));
    let give_up = Instant::now() + Duration::from_secs(10);
    let second = loop {
        match Embedded::open(&postgres.dir().join("authority")) {
            Ok(store) => break Arc::new(store),
            Err(error) => assert!(Instant::now() < give_up, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let takeover = start(options(&postgres), &second).await.unwrap();
    assert_eq!(
        registered(&second).await,
        [old_backend],
        "the start removes only what is gone"
    );
    assert_eq!(
        takeover.cells().cell(&Scope::default()).mark(),
        Some(token(1)),
        "from the store"
    );
    let (new, new_backend) = declared(&postgres, &takeover, "postgres", 2).await;
    assert!(old.batch_execute("COMMIT").await.is_err());
    assert_eq!(
        count(&new, "SELECT count(*) FROM pg_tables WHERE tablename = 't'").await,
        1
    );
    assert_eq!(count(&new, "SELECT count(*) FROM t").await, 0);
    assert_eq!(registered(&second).await, [new_backend]);
}

#[tokio::test]
async fn a_lost_control_connection_is_replaced_and_the_lock_taken_again() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let takeover = start(options(&postgres), &store).await.unwrap();
    let admin = postgres.connect("postgres").await;
    let (_old, old) = declared(&postgres, &takeover, "postgres", 1).await;
    let session = identified(&takeover, old);
    let control = "FROM pg_stat_activity WHERE application_name = 'pgpalisade control'";
    admin
        .query(&format!("SELECT pg_terminate_backend(pid) {control}"), &[])
        .await
        .unwrap();
    // At once: a declaration without a barrier does not need it, a takeover waits for it.
    let again = declare_for(&takeover, 1, session).await;
    assert_eq!(again.unwrap().token, token(1));
    let client = postgres.connect("postgres").await;
    let new = identify(&takeover, &client).await.unwrap();
    declare(&takeover, 2, new).await.unwrap();
    assert_eq!(registered(&store).await, [new]);
    let locks =
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'";
    eventually(&admin, locks, 1).await;
}

#[tokio::test]
async fn without_a_control_connection_only_takeovers_fail() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let admin = postgres.connect("postgres").await;
    let grants = "CREATE ROLE c LOGIN; GRANT pg_signal_backend, pg_read_all_stats TO c";
    admin.batch_execute(grants).await.unwrap();
    let control = TakeoverOptions {
        control: postgres.config("c").into(),
        timeout: Duration::from_millis(700),
        ..options(&postgres)
    };
    let takeover = start(control, &store).await.unwrap();
    admin.batch_execute("CREATE ROLE app LOGIN").await.unwrap();
    let (_old, old) = declared(&postgres, &takeover, "app", 1).await;
    let client = postgres.connect("app").await;
    let new = identify(&takeover, &client).await.unwrap();
    let [old_session, new_session] = [old, new].map(|backend| identified(&takeover, backend));
    admin.batch_execute("ALTER ROLE c NOLOGIN").await.unwrap();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'c'";
    admin.query(end, &[]).await.unwrap();
    let again = declare_for(&takeover, 1, old_session).await;
    assert_eq!(again.unwrap().token, token(1));
    match declare_for(&takeover, 2, new_session).await.unwrap_err() {
        DeclareError::Incomplete { left, why, .. } => {
            assert_eq!(left, [old]);
            assert!(why.contains("control connection"), "{why}");
        }
        other => panic!("{other}"),
    }
    admin.batch_execute("ALTER ROLE c LOGIN").await.unwrap();
    let give_up = Instant::now() + Duration::from_secs(10);
    while let Err(error) = declare_for(&takeover, 2, new_session).await {
        assert!(Instant::now() < give_up, "{error}");
    }
    assert_eq!(registered(&store).await, [new]);
}

/// The real store, slowed down.
struct Slow {
    store: Arc<Embedded>,
    declare: Duration,
    /// Whether it tells of changes.
    tells: bool,
    /// How often it was told of takeovers.
    notes: AtomicUsize,
}

#[async_trait]
impl Authority for Slow {
    fn identity(&self) -> AuthorityId {
        self.store.identity()
    }

    async fn enrol(&self, cluster: Cluster) -> Answer<Enrolled> {
        self.store.enrol(cluster).await
    }

    async fn mark(&self, scope: &Scope) -> Answer<Option<Mark>> {
        self.store.mark(scope).await
    }

    async fn repair(&self, request: &RepairRequest) -> Answer<Repaired> {
        self.store.repair(request).await
    }

    async fn cluster(&self) -> Answer<Option<Cluster>> {
        self.store.cluster().await
    }

    async fn recover(
        &self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Answer<Enrolled> {
        self.store.recover(seen, cluster, marks).await
    }

    async fn lease(&self, scope: &Scope, holder: LeaseId, step: LeaseStep) -> Answer<Leased> {
        self.store.lease(scope, holder, step).await
    }

    async fn note_takeovers(&self, scope: &Scope, records: &[TakeoverRecord]) -> Answer<()> {
        self.notes.fetch_add(1, Ordering::Relaxed);
        self.store.note_takeovers(scope, records).await
    }

    async fn takeovers(&self, of: Option<&Scope>) -> Answer<Vec<(Scope, TakeoverRecord)>> {
        self.store.takeovers(of).await
    }

    fn watch(&self) -> Watch {
        match self.tells {
            true => self.store.watch(),
            false => tokio::sync::mpsc::channel(1).1,
        }
    }

    async fn declare(&self, declaration: &Declaration) -> Answer<Declared> {
        // A proxy that has no answer at its start does not start.
        if !declaration.scope.is_epoch() {
            tokio::time::sleep(self.declare).await;
        }
        self.store.declare(declaration).await
    }

    async fn drained(&self, scope: &Scope, rank: Rank, gone: &[Backend]) -> Answer<Drained> {
        self.store.drained(scope, rank, gone).await
    }

    async fn forget(&self, gone: &[Backend]) -> Answer<()> {
        self.store.forget(gone).await
    }

    async fn sessions(&self) -> Answer<Vec<(Scope, Registered)>> {
        self.store.sessions().await
    }

    async fn marks(&self) -> Answer<Vec<(Scope, Mark)>> {
        self.store.marks().await
    }
}

/// A proxy that leads to a server which a later one has replaced, and has not heard of it.
struct Replaced {
    store: Arc<Embedded>,
    takeover: Takeover,
    later: Cluster,
}

impl Replaced {
    async fn start(postgres: &Postgres) -> Self {
        let store = store(postgres);
        let deaf = Slow {
            store: Arc::clone(&store),
            declare: Duration::ZERO,
            tells: false,
            notes: AtomicUsize::default(),
        };
        let options = TakeoverOptions {
            reap_every: Duration::from_millis(50),
            ..options(postgres)
        };
        let started = Takeover::start(options, Arc::new(deaf), CancellationToken::new()).await;
        let takeover = started.unwrap();
        let ours = takeover.cluster().unwrap();
        let later = Cluster {
            postmaster_us: ours.postmaster_us + 1,
            ..ours
        };
        Self {
            store,
            takeover,
            later,
        }
    }

    /// Registers a session that lives on the later server.
    async fn session_elsewhere(&self, value: u64) -> Backend {
        let enrolled = self.store.enrol(self.later).await.unwrap();
        assert_eq!(enrolled, Enrolled::Accepted);
        let backend = Backend {
            pid: 1,
            started_us: 1,
        };
        let declaration = Declaration {
            if_stale: IfStale::Register,
            ..Declaration::new(
                &Scope::default(),
                token(value),
                backend,
                self.later,
                "elsewhere",
            )
        };
        self.store.declare(&declaration).await.unwrap();
        backend
    }
}

#[tokio::test]
async fn a_reaper_on_a_replaced_server_removes_nobody() {
    let postgres = Postgres::start(&[]).await;
    let replaced = Replaced::start(&postgres).await;
    let elsewhere = replaced.session_elsewhere(1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(registered(&replaced.store).await, [elsewhere]);
}

#[tokio::test]
async fn a_barrier_on_a_replaced_server_removes_nobody_else() {
    let postgres = Postgres::start(&[]).await;
    let replaced = Replaced::start(&postgres).await;
    let Replaced {
        store, takeover, ..
    } = &replaced;
    let (_old, old) = declared(&postgres, takeover, "postgres", 1).await;
    let new = postgres.connect("postgres").await;
    let new = identify(takeover, &new).await.unwrap();
    postgres.signal(Signal::STOP, old.pid);
    let declaring = tokio::spawn({
        let (takeover, session) = (takeover.clone(), identified(takeover, new));
        async move { declare_for(&takeover, 2, session).await }
    });
    let give_up = Instant::now() + Duration::from_secs(4);
    while store.mark(&Scope::default()).await.unwrap().unwrap().token != token(2) {
        assert!(Instant::now() < give_up, "the mark is not raised");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let elsewhere = replaced.session_elsewhere(1).await;
    postgres.signal(Signal::CONT, old.pid);
    let refused = declaring.await.unwrap().unwrap_err();
    assert!(
        matches!(refused, DeclareError::WrongCluster { .. }),
        "{refused}"
    );
    assert!(registered(store).await.contains(&elsewhere));
}

#[tokio::test]
async fn an_authority_that_does_not_answer_is_an_error_in_time() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let never = Duration::from_secs(3600);
    let slow = Slow {
        store: Arc::clone(&store),
        declare: never,
        tells: true,
        notes: AtomicUsize::default(),
    };
    let timeout = Duration::from_millis(300);
    let options = TakeoverOptions {
        timeout,
        ..options(&postgres)
    };
    let takeover = Takeover::start(options, Arc::new(slow), CancellationToken::new())
        .await
        .unwrap();
    let began = Instant::now();
    let error = declare(
        &takeover,
        1,
        Backend {
            pid: 1,
            started_us: 1,
        },
    )
    .await
    .unwrap_err();
    assert!(matches!(error, DeclareError::Authority(_)), "{error}");
    assert!(began.elapsed() < timeout * 3, "{:?}", began.elapsed());
}

/// Two proxies on one store: the one that raised has gone, the other finishes its barrier.
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
    old.batch_execute("SELECT 1").await.unwrap();
    let (_new, new) = declared(&postgres, &two, "postgres", 2).await;
    assert!(old.batch_execute("SELECT 1").await.is_err());
    let mut expect = [raiser, new];
    expect.sort_unstable();
    assert_eq!(registered(&store).await, expect);
    // The watch has told its cache, though none of its sessions has declared since.
    let give_up = Instant::now() + Duration::from_secs(10);
    while one.cells().cell(&scope).mark() != Some(token(2)) {
        assert!(Instant::now() < give_up, "the watch tells nothing");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(matches!(
        declare(&one, 1, raiser).await,
        Err(DeclareError::Stale { .. })
    ));
}

/// Where a test's log goes.
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
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let takeover = start(options(&postgres), &store).await.unwrap();
    let (old, _) = declared(&postgres, &takeover, "postgres", 1).await;
    old.batch_execute("CREATE TABLE t (id int)").await.unwrap();
    old.batch_execute("BEGIN; INSERT INTO t VALUES (1)")
        .await
        .unwrap();
    old.batch_execute("PREPARE TRANSACTION 'left behind'")
        .await
        .unwrap();
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

/// Prints how long takeovers take, one old session each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takeover_times() {
    let postgres = Postgres::start(&["max_connections=200"]).await;
    let store = store(&postgres);
    let takeover = start(options(&postgres), &store).await.unwrap();
    let mut clients = vec![declared(&postgres, &takeover, "postgres", 1).await];
    let mut times = Vec::new();
    for value in 2..=101 {
        let client = postgres.connect("postgres").await;
        let backend = identify(&takeover, &client).await.unwrap();
        let began = Instant::now();
        declare(&takeover, value, backend).await.unwrap();
        times.push(began.elapsed());
        clients.push((client, backend));
    }
    times.sort_unstable();
    println!(
        "100 takeovers, one session each: p50 {:?}, p99 {:?}",
        times[49], times[98]
    );
    assert!(times[98] < Duration::from_secs(5));
    assert_eq!(registered(&store).await.len(), 1);
}
