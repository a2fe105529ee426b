//! The suite that every store must pass: on one member and on three, and through two handles at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pgpalisade_authority::{
    Answer, Authority, AuthorityId, Backend, Cluster, Declaration, Declared, Drained, Enrolled,
    Etcd, Mark, Rank, Registered, RepairRequest, Repaired, Scope, Watch, conformance,
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

/// Two proxies: every step goes through the other handle than the one before, so that neither knows what the store
/// holds.
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

impl Authority for InTurn {
    fn identity(&self) -> AuthorityId {
        self.next().identity()
    }

    fn enrol(&self, cluster: Cluster) -> Answer<'_, Enrolled> {
        self.next().enrol(cluster)
    }

    fn declare<'a>(&'a self, declaration: &'a Declaration<'a>) -> Answer<'a, Declared> {
        self.next().declare(declaration)
    }

    fn drained<'a>(
        &'a self,
        scope: &'a Scope,
        rank: Rank,
        gone: &'a [Backend],
    ) -> Answer<'a, Drained> {
        self.next().drained(scope, rank, gone)
    }

    fn forget<'a>(&'a self, gone: &'a [Backend]) -> Answer<'a, ()> {
        self.next().forget(gone)
    }

    fn sessions(&self) -> Answer<'_, Vec<(Scope, Registered)>> {
        self.next().sessions()
    }

    fn marks(&self) -> Answer<'_, Vec<(Scope, Mark)>> {
        self.next().marks()
    }

    fn mark<'a>(&'a self, scope: &'a Scope) -> Answer<'a, Option<Mark>> {
        self.next().mark(scope)
    }

    fn repair<'a>(&'a self, request: &'a RepairRequest<'a>) -> Answer<'a, Repaired> {
        self.next().repair(request)
    }

    fn cluster(&self) -> Answer<'_, Option<Cluster>> {
        self.next().cluster()
    }

    fn recover<'a>(
        &'a self,
        seen: Option<Cluster>,
        cluster: Cluster,
        marks: &'a [(Scope, Mark)],
    ) -> Answer<'a, Enrolled> {
        self.next().recover(seen, cluster, marks)
    }

    fn watch(&self) -> Watch {
        self.next().watch()
    }
}
