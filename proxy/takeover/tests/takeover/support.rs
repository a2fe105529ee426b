//! The end-to-end harness, for tests that call the proxy's own code.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use pgpalisade_authority::{
    Answer, Authority, AuthorityId, Backend, Cluster, Declaration, Declared, Drained, Embedded,
    Enrolled, LeaseId, LeaseStep, Leased, Mark, Rank, Registered, RepairRequest, Repaired, Scope,
    TakeoverRecord, Token, Watch,
};
use pgpalisade_policies::TokenBounds;
use pgpalisade_takeover::{DeclareError, Identified, Purpose, Takeover, Terms};
use pgpalisade_test_servers::machine;
use pgpalisade_test_servers::postgres::{Auth, scratch_dir};
use tokio::sync::mpsc;
use tokio_postgres::{Client, Config, NoTls};

/// A running server.
pub(super) struct Postgres {
    server: pgpalisade_test_servers::postgres::Postgres,
    dir: tempfile::TempDir,
}

impl Postgres {
    /// Starts a server with these extra settings, such as `max_connections=300`.
    pub(super) async fn start(settings: &[&str]) -> Self {
        Self {
            server: pgpalisade_test_servers::postgres::Postgres::start_with(Auth::Trust, settings),
            dir: scratch_dir(),
        }
    }

    /// Connection settings for the socket of this server.
    pub(super) fn config(&self, user: &str) -> Config {
        let mut config = Config::new();
        config
            .host_path(self.server.socket_dir())
            .port(self.server.port())
            .user(user)
            .dbname("postgres");
        config
    }

    /// Connects as a user.
    pub(super) async fn connect(&self, user: &str) -> Client {
        let (client, connection) = self.config(user).connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// A directory for stores.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Sends a signal to one server process.
    pub(super) fn signal(&self, signal: machine::Signal, pid: i32) {
        machine::signal(pid.cast_unsigned(), signal);
    }
}

/// Declares a token of the default scope for a session.
pub(super) async fn declare(
    takeover: &Takeover,
    value: u64,
    session: Identified,
    bounds: TokenBounds,
) -> Result<Mark, DeclareError> {
    let declaration = Declaration::new(
        &Scope::default(),
        Token::new(value).unwrap(),
        session.backend,
        session.cluster,
        "a test",
    );
    let terms = Terms {
        purpose: Purpose::Admit,
        bounds,
    };
    takeover
        .declare(declaration, terms, takeover.deadline())
        .await
}

/// The real store, counted or with a broken watch.
pub(super) struct Slow {
    pub(super) store: Arc<Embedded>,
    /// Whether it reports changes.
    pub(super) tells: bool,
    /// Number of times that it was told of takeovers.
    pub(super) notes: AtomicUsize,
    /// Number of steps with leases.
    pub(super) lease_steps: AtomicUsize,
}

impl Slow {
    /// As fast as the store.
    pub(super) fn telling(store: &Arc<Embedded>) -> Self {
        Self {
            store: Arc::clone(store),
            tells: true,
            notes: AtomicUsize::default(),
            lease_steps: AtomicUsize::default(),
        }
    }

    /// As fast as the store, with a silent watch, as if the watch were broken.
    pub(super) fn deaf(store: &Arc<Embedded>) -> Self {
        Self {
            tells: false,
            ..Self::telling(store)
        }
    }
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
        self.lease_steps.fetch_add(1, Ordering::Relaxed);
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
            mpsc::channel(1).1
        }
    }

    async fn declare(&self, declaration: &Declaration) -> Answer<Declared> {
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
