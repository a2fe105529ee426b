//! The suite that every store must pass, on one member and on three, and through two handles at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use pgpalisade_authority::{
    Answer, Authority, AuthorityId, Backend, Cluster, Declaration, Declared, Drained, Enrolled,
    Etcd, LeaseId, LeaseStep, Leased, Mark, Rank, Registered, RepairRequest, Repaired, Scope,
    TakeoverRecord, Watch, conformance,
};
use pgpalisade_tests::etcd;
use pgpalisade_tests::machine;

use crate::stage::connect_to;

async fn passes(store: Arc<dyn Authority>) {
    let seed = machine::seed();
    for step in 0..3 {
        conformance::run(Arc::clone(&store), seed.wrapping_add(step)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_member() {
    let etcd = etcd::Etcd::start(1);
    passes(Arc::new(connect_to(&etcd.authority()).await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_members() {
    let etcd = etcd::Etcd::start(3);
    passes(Arc::new(connect_to(&etcd.authority()).await)).await;
}

/// Two proxies: steps alternate between the handles, so that neither knows the store's contents.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_handles() {
    let etcd = etcd::Etcd::start(1);
    let authority = etcd.authority();
    let (one, other) = tokio::join!(connect_to(&authority), connect_to(&authority));
    assert_eq!(one.identity(), other.identity(), "who comes first makes it");
    passes(Arc::new(InTurn {
        handles: [one, other],
        steps: AtomicUsize::new(0),
    }))
    .await;
}

/// Two proxies that write to one scope at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_writers() {
    let etcd = etcd::Etcd::start(3);
    let authority = etcd.authority();
    let (one, other) = tokio::join!(connect_to(&authority), connect_to(&authority));
    conformance::run_two(Arc::new(one), Arc::new(other), machine::seed()).await;
}

struct InTurn {
    handles: [Etcd; 2],
    steps: AtomicUsize,
}

impl InTurn {
    fn next(&self) -> &Etcd {
        &self.handles[self.steps.fetch_add(1, Ordering::Relaxed) % 2]
    }
}

#[async_trait]
impl Authority for InTurn {
    fn identity(&self) -> AuthorityId {
        self.next().identity()
    }

    async fn enrol(&self, cluster: Cluster) -> Answer<Enrolled> {
        self.next().enrol(cluster).await
    }

    async fn declare(&self, declaration: &Declaration) -> Answer<Declared> {
        self.next().declare(declaration).await
    }

    async fn drained(&self, scope: &Scope, rank: Rank, gone: &[Backend]) -> Answer<Drained> {
        self.next().drained(scope, rank, gone).await
    }

    async fn forget(&self, gone: &[Backend]) -> Answer<()> {
        self.next().forget(gone).await
    }

    async fn sessions(&self) -> Answer<Vec<(Scope, Registered)>> {
        self.next().sessions().await
    }

    async fn marks(&self) -> Answer<Vec<(Scope, Mark)>> {
        self.next().marks().await
    }

    async fn mark(&self, scope: &Scope) -> Answer<Option<Mark>> {
        self.next().mark(scope).await
    }

    async fn repair(&self, request: &RepairRequest) -> Answer<Repaired> {
        self.next().repair(request).await
    }

    async fn cluster(&self) -> Answer<Option<Cluster>> {
        self.next().cluster().await
    }

    async fn recover(
        &self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &[(Scope, Mark)],
    ) -> Answer<Enrolled> {
        self.next().recover(seen, cluster, marks).await
    }

    async fn lease(&self, scope: &Scope, holder: LeaseId, step: LeaseStep) -> Answer<Leased> {
        self.next().lease(scope, holder, step).await
    }

    async fn note_takeovers(&self, scope: &Scope, records: &[TakeoverRecord]) -> Answer<()> {
        self.next().note_takeovers(scope, records).await
    }

    async fn takeovers(&self, of: Option<&Scope>) -> Answer<Vec<(Scope, TakeoverRecord)>> {
        self.next().takeovers(of).await
    }

    fn watch(&self) -> Watch {
        self.next().watch()
    }
}
