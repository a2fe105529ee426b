//! An authority that is slow, and a server that has been replaced.

use super::*;

/// The real store, slowed down.
struct Slow {
    store: Arc<Embedded>,
    declare: Duration,
    /// Whether it reports changes.
    tells: bool,
    /// Number of times that it was told of takeovers.
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
        if self.tells {
            self.store.watch()
        } else {
            tokio::sync::mpsc::channel(1).1
        }
    }

    async fn declare(&self, declaration: &Declaration) -> Answer<Declared> {
        // A proxy without an answer at its start does not start.
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

/// A proxy that leads to a replaced server, and does not know it.
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
