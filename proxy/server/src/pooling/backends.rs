//! A worker's pool of server connections: its state. `backends/lending.rs` carries out what it decides.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
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

/// Tokens in canonical form.
pub(crate) type Tokens = Arc<str>;

/// A server connection that serves no client at the moment.
pub(crate) struct Backend {
    pub(crate) half: Box<ServerHalf>,
    pub(crate) side: Box<ServerSide>,
    pub(crate) cancellable: Arc<Cancellable>,
    /// That of its database, if resets depend on it.
    pub(crate) census: Option<Rc<Census>>,
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
    pub(crate) opening: RefCell<HashSet<BackendId>>,
    /// Error of the opening that has just failed.
    pub(crate) failed: RefCell<Option<OpenError>>,
    /// Connections that are open, for people.
    pub(crate) opened: RefCell<HashMap<BackendId, Opened>>,
    pub(crate) censuses: Option<Censuses>,
}

impl Backends {
    pub(crate) fn new(limits: &BackendLimits, places: &Places) -> Self {
        let censuses = match limits.reset {
            Reset::Always => None,
            Reset::Auto => Some(Censuses::default()),
        };
        let limits = Limits {
            login: limits.max.get(),
            leaders: limits.leaders,
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
            opened: RefCell::default(),
            censuses,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.begun.elapsed()
    }
}
