//! State that the shared server connections of all workers have in common.

mod admissions;
pub(crate) mod backends;
pub(crate) mod cancel_keys;
pub(crate) mod census;
mod places;
pub mod view;

use std::cmp::Ordering;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pgpalisade_logins::Credentials;
use pgpalisade_policies::PoolMode;
use tokio::sync::Semaphore;

pub(crate) use admissions::{Admissions, Admitted};
pub(crate) use places::Places;

/// How long a client has a server connection for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pool {
    Session,
    Transaction(BackendLimits),
}

/// When a server connection is reset that another client is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    Always,
    /// Not after transactions that have only read, in a database without functions that may leave something.
    Auto,
}

/// Limits of the server connections that clients share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendLimits {
    pub max: NonZeroUsize,
    /// Of these, for current tokens only. Fewer than `max`.
    pub leaders: usize,
    /// Time that a transaction waits for a connection.
    pub wait: Duration,
    /// Time after which an idle connection is closed.
    pub idle: Duration,
    /// Time after which a connection is replaced, give or take a tenth.
    pub lifetime: Duration,
    /// Connections at most that clients keep beyond a transaction.
    pub pinned: usize,
    /// Connections beside these, for clients that the policy gives one of their own.
    pub sessions: usize,
    pub reset: Reset,
}

#[derive(Debug, Clone)]
pub struct Pooling {
    pub(crate) admissions: Admissions,
    pub(crate) cancel_keys: cancel_keys::CancelKeys,
    pub pools: view::Pools,
    /// Limits of a worker's shared connections, and the places of all; `None`: each client has its own.
    pub(crate) shared: Option<(BackendLimits, Places)>,
    /// Places of connections beside the pool.
    pub(crate) own: Arc<Semaphore>,
    /// Shared connections of clients that wait for a lease, at most half: the others serve who holds it, too.
    pub(crate) lease_waits: Arc<Semaphore>,
}

impl Pooling {
    pub(crate) fn new(pool: Pool, workers: NonZeroUsize) -> Self {
        let (shared, own, waits) = match pool {
            Pool::Session => (None, 0, 0),
            Pool::Transaction(limits) => {
                let (places, own) = (Places::new(&limits, workers), limits.sessions);
                let readers = limits.max.get().saturating_sub(limits.leaders);
                let waits = (limits.max.get() / 2).min(readers.saturating_sub(1).max(1));
                (Some((limits, places)), own, waits)
            }
        };
        Self {
            admissions: Admissions::default(),
            cancel_keys: cancel_keys::CancelKeys::default(),
            pools: view::Pools::default(),
            shared,
            own: Arc::new(Semaphore::new(own)),
            lease_waits: Arc::new(Semaphore::new(waits)),
        }
    }
}

impl Pooling {
    /// How long a client has a server connection, if nothing else is said.
    pub const fn mode(&self) -> PoolMode {
        match self.shared {
            None => PoolMode::Session,
            Some(_) => PoolMode::Transaction,
        }
    }
}

/// A login that opens server connections for all clients that have it.
#[derive(Debug, Clone)]
pub(crate) struct SharedLogin {
    /// The startup packet. Clients with equal packets share connections.
    pub(crate) packet: Bytes,
    /// Kept while a client or a connection has them. `None`: the server must ask for nothing.
    pub(crate) credentials: Option<Arc<Credentials>>,
}

impl SharedLogin {
    fn order(&self) -> (&Bytes, Option<*const Credentials>) {
        (&self.packet, self.credentials.as_ref().map(Arc::as_ptr))
    }
}

impl Ord for SharedLogin {
    /// Logins with equal credentials share them, once PostgreSQL has admitted one.
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for SharedLogin {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SharedLogin {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for SharedLogin {}
