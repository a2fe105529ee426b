//! State that a worker thread's connections share without locks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_fence::rejection::{Enforcement, Rejection};
use pgpalisade_fence::{Fence, SessionFence};
use pgpalisade_logins::{ClientAddr, SessionLabel};
use pgpalisade_policies::{Network, VerdictCache, Who};
use pgpalisade_rejection_log::{RecordedStatement, RejectionLog, RejectionRecord};
use pgpalisade_takeover::Takeover;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::accounts::Logins;
use crate::certificates::Certificates;
use crate::classification::Classification;
use crate::client_table::ClientTable;
use crate::collected::Budget;
use crate::hosts::Hosts;
use crate::metrics::{Clock, Metrics, WorkerTally};
use crate::pause::{Gate, Pause};
use crate::pending_logins::PendingLogins;
use crate::pooling::Pooling;
use crate::pooling::backends::Backends;
use crate::timers::Timers;
use crate::transport::{Batching, Scratch, SendBatch, StallLimit};

const VERDICT_CACHE_BYTES: usize = 16 * 1024 * 1024;

const COLLECTED_BYTES: u32 = 32 * 1024 * 1024;

/// Time from the first look at an incomplete text to its last byte.
const COLLECTED_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct ClusterServers {
    pub upstream: Hosts,
    pub control: Hosts,
}

#[derive(Debug, Clone)]
pub struct ClientLimits {
    /// Networks of load balancers, whose connections begin with a PROXY protocol header.
    pub proxy_protocol: Vec<Network>,
    pub login_timeout: Duration,
    /// A client that accepts no byte for this long is disconnected; `None`: never.
    pub write_stall_timeout: Option<Duration>,
    /// Idle time before TCP keep-alive probes; `None`: no probes.
    pub tcp_keepalive: Option<Duration>,
}

impl ClientLimits {
    /// Whether connections from this address begin with a PROXY protocol header.
    pub(crate) fn comes_proxied(&self, peer: ClientAddr) -> bool {
        let networks = &self.proxy_protocol;
        peer.ip()
            .is_some_and(|ip| networks.iter().any(|network| network.contains(ip)))
    }
}

#[derive(Clone)]
pub struct WorkerContext {
    pub takeover: Takeover,
    pub fence: watch::Receiver<Arc<Fence>>,
    pub(crate) classification: Classification,
    pub rejections: RejectionLog,
    pub metrics: Metrics,
    pub connected: ClientTable,
    pub servers: ClusterServers,
    pub certificates: Arc<Certificates>,
    pub(crate) logins: Logins,
    pub(crate) pending_logins: PendingLogins,
    pub pooling: Pooling,
    pub(crate) limits: ClientLimits,
    pub pause: Pause,
    pub timers: Timers,
    pub(crate) ending: Ending,
}

/// The two steps by which a process ends its connections.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ending {
    /// Ends new logins and idle sessions.
    pub(crate) drain: CancellationToken,
    /// Ends everything at once.
    pub(crate) abort: CancellationToken,
}

/// State that the connections of one worker share. Other threads share only handles that need no lock for a message.
pub(crate) struct Worker {
    pub(crate) shared: WorkerContext,
    fences: RefCell<watch::Receiver<Arc<Fence>>>,
    /// The newest that was seen.
    fence: RefCell<Arc<Fence>>,
    pub(crate) verdicts: RefCell<VerdictCache>,
    pub(crate) tally: WorkerTally,
    pub(crate) clock: Clock,
    pub(crate) scratch: RefCell<Scratch>,
    pub(crate) sends: Rc<SendBatch>,
    pub(crate) collected: Budget,
    pub(crate) write_stall_limit: StallLimit,
    /// Time for the server to close after a goodbye.
    pub(crate) close_timeout: Duration,
    /// Cancelled when `stopping` is set, to wake idle connections.
    pub(crate) drain: CancellationToken,
    /// Sessions end once idle.
    pub(crate) stopping: Cell<bool>,
    pub(crate) gate: Gate,
    /// Connections that clients share; `None`: each client has its own.
    pub(crate) backends: Option<Backends>,
}

impl Worker {
    pub(crate) fn new(shared: WorkerContext, batching: Batching) -> Self {
        let fence = Arc::clone(&shared.fence.borrow());
        let backends = shared.pooling.shared.clone();
        Self {
            fence: RefCell::new(fence),
            fences: RefCell::new(shared.fence.clone()),
            verdicts: RefCell::new(VerdictCache::new(VERDICT_CACHE_BYTES)),
            tally: shared.metrics.worker(),
            clock: shared.metrics.clock(),
            scratch: RefCell::new(Scratch::default()),
            sends: Rc::new(SendBatch::new(batching)),
            collected: Budget::new(COLLECTED_BYTES, COLLECTED_WITHIN),
            write_stall_limit: StallLimit {
                time: shared.limits.write_stall_timeout,
                timers: shared.timers.clone(),
            },
            close_timeout: Duration::from_secs(5),
            drain: CancellationToken::new(),
            stopping: Cell::new(false),
            gate: Gate::new(),
            backends: backends.map(|(limits, places)| Backends::new(&limits, &places)),
            shared,
        }
    }

    /// Whether a fence is the one of the last loaded policy.
    #[inline]
    pub(crate) fn is_in_force(&self, fence: &Arc<Fence>) -> bool {
        self.follow_policy();
        Arc::ptr_eq(&self.fence.borrow(), fence)
    }

    /// Takes the last loaded policy. Called whenever a client has sent something: after a reported reload the old
    /// policy decides nothing.
    #[inline]
    fn follow_policy(&self) {
        let mut fences = self.fences.borrow_mut();
        if fences.has_changed().unwrap_or(false) {
            *self.fence.borrow_mut() = Arc::clone(&fences.borrow_and_update());
        }
    }

    pub(crate) fn record(
        &self,
        rejection: &Rejection,
        label: &SessionLabel,
        statement: RecordedStatement,
        enforcement: Enforcement,
    ) {
        let metrics = &self.shared.metrics;
        if label.is_authenticated() {
            metrics.rejected(rejection, enforcement)
        } else {
            metrics.rejected_unproved(rejection, enforcement)
        }
        let record = RejectionRecord::new(rejection, label, statement, enforcement);
        self.shared.rejections.record(record);
    }

    /// Rules for a session without a client.
    pub(crate) fn fence_of_nobody(&self) -> SessionFence {
        self.follow_policy();
        self.fence.borrow().for_session(&Who {
            user: "",
            database: "",
            application_name: None,
            common_name: None,
            client: None,
        })
    }

    pub(crate) fn fence_for(&self, label: &SessionLabel) -> SessionFence {
        let who = Who {
            user: &label.user,
            database: &label.database,
            application_name: label.application_name.as_deref(),
            common_name: label.common_name.as_deref(),
            client: label.client_addr.ip(),
        };
        self.follow_policy();
        self.fence.borrow().for_session(&who)
    }
}
