//! The etcd store: marks and sessions in an etcd cluster, for several proxies.

mod clusters;
mod declare;
mod fault;
mod history;
mod keys;
mod marks;
mod members;
mod open;
mod options;
mod removal;
mod status;
mod store;
mod watch;

use std::sync::Arc;

use tokio::task::AbortHandle;

pub use open::OpenError;
pub use options::{DEFAULT_PREFIX, Options, OptionsError};
pub use status::{Endpoint, Member, Role};

use crate::{
    Answer, Authority, AuthorityId, Backend, Cluster, Declaration, Declared, Drained, Enrolled,
    Mark, Registered, Scope, Token, Watch,
};
use store::Store;

/// The etcd store. Clones share the connections, which are closed with the last of them.
#[derive(Debug, Clone)]
pub struct Etcd {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<Store>,
    watch: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Etcd {
    /// Connects, and makes the store where there is none. Takes 5 s at most.
    ///
    /// The connections live in the runtime that this is called in; the store can be used from others too.
    ///
    /// Errors: files that cannot be read, no endpoint that answers, a refused login, no etcd, a store that a newer version has
    /// made.
    pub async fn connect(options: Options) -> Result<Self, OpenError> {
        let (store, revision) = open::open(options).await?;
        let store = Arc::new(store);
        let watching = Arc::clone(&store);
        let watch = tokio::spawn(async move { watching.run_watch(revision).await });
        let watch = watch.abort_handle();
        Ok(Self {
            inner: Arc::new(Inner { store, watch }),
        })
    }

    /// Every endpoint, in the order given, as it is now. Takes about a second at most.
    pub async fn endpoints(&self) -> Vec<Endpoint> {
        self.inner.store.endpoints().await
    }

    fn store(&self) -> &Store {
        &self.inner.store
    }
}

impl Authority for Etcd {
    fn identity(&self) -> AuthorityId {
        self.store().identity
    }

    fn enrol(&self, cluster: Cluster) -> Answer<'_, Enrolled> {
        Box::pin(self.store().enrol(cluster))
    }

    fn declare<'a>(&'a self, declaration: &'a Declaration<'a>) -> Answer<'a, Declared> {
        Box::pin(self.store().declare(declaration))
    }

    fn drained<'a>(
        &'a self,
        scope: &'a Scope,
        token: Token,
        gone: &'a [Backend],
    ) -> Answer<'a, Drained> {
        Box::pin(self.store().drained(scope, token, gone))
    }

    fn release(&self, backend: Backend) -> Answer<'_, ()> {
        Box::pin(async move { self.store().forget(&[backend]).await })
    }

    fn forget<'a>(&'a self, gone: &'a [Backend]) -> Answer<'a, ()> {
        Box::pin(self.store().forget(gone))
    }

    fn sessions(&self) -> Answer<'_, Vec<(Scope, Registered)>> {
        Box::pin(async move {
            let store = self.store();
            let range = store.keys.sessions();
            let (_, all) = store.read_all(&range, |kv| store.read_session(kv)).await?;
            Ok(all)
        })
    }

    fn marks(&self) -> Answer<'_, Vec<(Scope, Mark)>> {
        Box::pin(async move {
            let (_, marks) = self.store().read_marks().await?;
            let told = marks.into_iter().map(|(scope, known)| {
                self.store().marks.put(&scope, known.clone());
                (scope, known.row.mark())
            });
            Ok(told.collect())
        })
    }

    fn cluster(&self) -> Answer<'_, Option<Cluster>> {
        Box::pin(self.store().cluster())
    }

    fn recover<'a>(&'a self, cluster: Cluster, marks: &'a [(Scope, Mark)]) -> Answer<'a, ()> {
        Box::pin(self.store().recover(cluster, marks))
    }

    fn watch(&self) -> Watch {
        self.store().watch()
    }
}
