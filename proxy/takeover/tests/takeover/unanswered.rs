//! An authority that is slow, and a server that has been replaced.

use super::*;

/// A scope whose mark rises all the time costs the authority no more than a few steps a second.
#[tokio::test]
async fn takeovers_of_a_busy_scope_are_noted_together() {
    let postgres = Postgres::start(&[]).await;
    let counting = Arc::new(Slow::telling(&store(&postgres)));
    let authority = Arc::clone(&counting) as _;
    let started = Takeover::start(options(&postgres), authority, CancellationToken::new()).await;
    let takeover = started.unwrap();
    let (_client, backend) = joined(&postgres, &takeover, "postgres").await;
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

/// A proxy that leads to a replaced server, and does not know it.
struct Replaced {
    store: Arc<Embedded>,
    takeover: Takeover,
    later: Cluster,
}

impl Replaced {
    async fn start(postgres: &Postgres) -> Self {
        let store = store(postgres);
        let deaf = Slow::deaf(&store);
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
