//! A worker's pool of server connections: its state. `backends/lending.rs` carries out what it decides.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgpalisade_pool::{BackendId, ClientId, Limits, Pool, Residue};
use pgpalisade_session::ServerHalf;
use tokio::sync::oneshot;

use super::cancel_keys::Cancellable;
use super::census::{Census, Censuses};
use super::places::{Places, Share};
use super::view::Opened;
use super::{BackendLimits, Reset, SharedLogin};
use crate::open_error::OpenError;
use crate::upstream::ServerSide;

/// Longer than the pool pauses between two openings for a login.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);

/// Tokens in canonical form.
pub(crate) type Tokens = Arc<str>;

/// A server connection that serves no client at the moment.
pub(crate) struct Backend {
    pub(crate) half: Box<ServerHalf>,
    pub(crate) side: Box<ServerSide>,
    pub(crate) cancellable: Arc<Cancellable>,
    /// That of its database, if resets depend on it.
    pub(crate) census: Option<Rc<Census>>,
    /// Its last client's number of [discards](pgpalisade_session::ClientHalf::discards) when that gave it back.
    pub(crate) left_after: u32,
}

/// A server connection for a client. Boxed, because it is large and goes from hand to hand.
pub(crate) struct Handed {
    pub(crate) id: BackendId,
    pub(crate) backend: Box<Backend>,
    /// Left by another client.
    pub(crate) residue: Residue,
}

pub(crate) type Answer = Result<Handed, OpenError>;
pub(crate) type Machine = Pool<SharedLogin, Tokens, Share>;

/// The pool of one worker.
pub(crate) struct Backends {
    pub(crate) begun: Instant,
    pub(crate) machine: RefCell<Machine>,
    /// Whether clients are to give back what they have, also if they send ahead. As of the last tick.
    pub(crate) are_wanted_back: Cell<bool>,
    pub(crate) idle: RefCell<BTreeMap<BackendId, Box<Backend>>>,
    pub(crate) waiting: RefCell<BTreeMap<ClientId, oneshot::Sender<Answer>>>,
    /// Connections that are being opened and still wanted.
    pub(crate) opening: RefCell<BTreeMap<BackendId, SharedLogin>>,
    /// Error of the opening that has just failed.
    pub(crate) failed: RefCell<Option<OpenError>>,
    pub(crate) failures: RefCell<Failures>,
    /// Connections that are open, for people.
    pub(crate) opened: RefCell<HashMap<BackendId, Opened>>,
    pub(crate) censuses: Option<Censuses>,
}

/// Why the last opening for a login failed, until one succeeds or none has failed for a while.
#[derive(Default)]
pub(crate) struct Failures(BTreeMap<SharedLogin, (Instant, OpenError)>);

impl Failures {
    /// Notes an error. Returns whether it differs from the last one.
    pub(crate) fn note(&mut self, login: &SharedLogin, error: &OpenError) -> bool {
        let last = self
            .0
            .insert(login.clone(), (Instant::now(), error.clone()));
        last.is_none_or(|(_, last)| last.in_words() != error.in_words())
    }

    pub(crate) fn forget(&mut self, login: &SharedLogin) {
        self.0.remove(login);
    }

    pub(crate) fn last(&self, login: &SharedLogin) -> Option<OpenError> {
        self.0.get(login).map(|(_, error)| error.clone())
    }

    /// Forgets what is old, or of a login that nobody else knows any more: it keeps no credentials.
    pub(crate) fn tidy(&mut self) {
        self.0.retain(|login, (at, _)| {
            let credentials = login.credentials.as_ref();
            let is_known = credentials.is_none_or(|known| Arc::strong_count(known) > 1);
            is_known && at.elapsed() < REMEMBERED_FOR
        });
    }
}

impl Backends {
    pub(crate) fn new(limits: &BackendLimits, places: &Places) -> Self {
        let censuses = match limits.reset {
            Reset::Always => None,
            Reset::Auto => Some(Censuses::default()),
        };
        let limits = Limits {
            login: limits.max.get(),
            undecided: places.undecided(),
            wait: limits.wait,
            idle: limits.idle,
            lifetime: limits.lifetime,
        };
        Self {
            begun: Instant::now(),
            machine: RefCell::new(Pool::new(limits, places.share())),
            are_wanted_back: Cell::default(),
            idle: RefCell::default(),
            waiting: RefCell::default(),
            opening: RefCell::default(),
            failed: RefCell::default(),
            failures: RefCell::default(),
            opened: RefCell::default(),
            censuses,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.begun.elapsed()
    }
}
