//! State that the shared server connections of all workers have in common.

mod admissions;
pub(crate) mod backends;
pub(crate) mod cancel_keys;
pub(crate) mod census;
mod greeting;
pub mod view;

use std::cmp::Ordering;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering as Atomic};
use std::time::Duration;

use bytes::Bytes;
use pgpalisade_logins::Credentials;
use pgpalisade_policies::PoolMode;
use pgpalisade_pool::Budget;
use tokio::sync::Semaphore;

pub(crate) use admissions::{Admissions, Admitted};
pub(crate) use greeting::{Greeting, InitialReports};

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
}

impl Pooling {
    pub(crate) fn new(pool: Pool, workers: NonZeroUsize) -> Self {
        let (shared, own) = match pool {
            Pool::Session => (None, 0),
            Pool::Transaction(mut limits) => {
                let (places, own) = (Places::new(&limits), limits.sessions);
                limits.leaders = limits.leaders.div_ceil(workers.get());
                (Some((limits, places)), own)
            }
        };
        Self {
            admissions: Admissions::default(),
            cancel_keys: cancel_keys::CancelKeys::default(),
            pools: view::Pools::default(),
            shared,
            own: Arc::new(Semaphore::new(own)),
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

/// Places for server connections that the workers share.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<Taken>);

#[derive(Debug)]
struct Taken {
    free: AtomicUsize,
    free_pins: AtomicUsize,
    /// Whether a worker has found none free since the last connection was closed for it.
    are_wanted: AtomicBool,
}

impl Places {
    fn new(limits: &BackendLimits) -> Self {
        Self(Arc::new(Taken {
            free: AtomicUsize::new(limits.max.get()),
            free_pins: AtomicUsize::new(limits.pinned),
            are_wanted: AtomicBool::new(false),
        }))
    }

    /// Whether a worker with an idle connection is to close one, because a worker has found no place.
    pub(crate) fn is_one_wanted(&self) -> bool {
        self.0.are_wanted.swap(false, Atomic::AcqRel)
    }
}

impl Budget for Places {
    fn take(&mut self) -> bool {
        let taken = take_one(&self.0.free);
        if !taken {
            self.0.are_wanted.store(true, Atomic::Release);
        }
        taken
    }

    fn give_back(&mut self) {
        self.0.free.fetch_add(1, Atomic::AcqRel);
    }

    fn pin(&mut self) -> bool {
        take_one(&self.0.free_pins)
    }

    fn unpin(&mut self) {
        self.0.free_pins.fetch_add(1, Atomic::AcqRel);
    }
}

fn take_one(free: &AtomicUsize) -> bool {
    let one_less = |free: usize| free.checked_sub(1);
    let (order, seen) = (Atomic::AcqRel, Atomic::Relaxed);
    free.fetch_update(order, seen, one_less).is_ok()
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
