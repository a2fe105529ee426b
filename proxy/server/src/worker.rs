//! State that the connections of one worker thread share without locks.

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
use crate::timers::Timers;
use crate::transport::{Batching, Scratch, SendBatch, StallLimit};

/// Memory limit of one worker's verdict cache.
const VERDICT_CACHE_BYTES: usize = 16 * 1024 * 1024;

/// Memory limit of one worker for incomplete texts.
const COLLECTED_BYTES: usize = 32 * 1024 * 1024;

/// Time from the first look at an incomplete text to its last byte.
const COLLECTED_WITHIN: Duration = Duration::from_secs(30);

/// The servers of the protected cluster.
#[derive(Clone)]
pub struct ClusterServers {
    /// Servers for sessions.
    pub upstream: Hosts,
    /// The same servers, as the control connection reaches them.
    pub control: Hosts,
}

/// Limits of every client connection.
#[derive(Debug, Clone)]
pub struct ClientLimits {
    /// Networks of load balancers, whose connections begin with a PROXY protocol header.
    pub proxy_protocol: Vec<Network>,
    /// Time from connecting to the end of the login.
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

/// State that all workers share.
#[derive(Clone)]
pub struct WorkerContext {
    /// Declarations and releases.
    pub takeover: Takeover,
    /// The fence, and each new one after a reload.
    pub fence: watch::Receiver<Arc<Fence>>,
    /// Slow classification, on a separate thread.
    pub(crate) classification: Classification,
    /// The record of rejections.
    pub rejections: RejectionLog,
    /// Counters.
    pub metrics: Metrics,
    /// Connected clients.
    pub connected: ClientTable,
    /// The servers of the protected cluster.
    pub servers: ClusterServers,
    /// TLS of both legs.
    pub certificates: Arc<Certificates>,
    pub(crate) logins: Logins,
    pub(crate) pending_logins: PendingLogins,
    pub(crate) limits: ClientLimits,
    /// Whether operators hold sessions up.
    pub pause: Pause,
    pub(crate) batching: Batching,
    /// Timers of the main runtime.
    pub timers: Timers,
    pub(crate) ending: Ending,
}

/// The two steps in which a process ends its connections.
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
    /// Delivers each new fence after a reload.
    fences: RefCell<watch::Receiver<Arc<Fence>>>,
    /// The newest of them that was seen.
    fence: RefCell<Arc<Fence>>,
    /// Verdicts, by text and form.
    pub(crate) verdicts: RefCell<VerdictCache>,
    pub(crate) tally: WorkerTally,
    /// Measures the time that the proxy adds.
    pub(crate) clock: Clock,
    /// The read buffer of all connections.
    pub(crate) scratch: RefCell<Scratch>,
    /// Bytes to send, of all connections.
    pub(crate) sends: Rc<SendBatch>,
    /// Memory budget for incomplete texts.
    pub(crate) collected: Budget,
    /// Limit for a client that takes no byte.
    pub(crate) write_stall_limit: StallLimit,
    /// Time for the server to close after a goodbye.
    pub(crate) close_timeout: Duration,
    /// Cancelled when `stopping` is set, to wake idle connections.
    pub(crate) drain: CancellationToken,
    /// Sessions end as soon as they are idle.
    pub(crate) stopping: Cell<bool>,
    /// Shut while operators hold sessions up.
    pub(crate) gate: Gate,
}

impl Worker {
    pub(crate) fn new(shared: WorkerContext) -> Self {
        let fence = Arc::clone(&shared.fence.borrow());
        Self {
            fence: RefCell::new(fence),
            fences: RefCell::new(shared.fence.clone()),
            verdicts: RefCell::new(VerdictCache::new(VERDICT_CACHE_BYTES)),
            tally: shared.metrics.worker(),
            clock: shared.metrics.clock(),
            scratch: RefCell::new(Scratch::default()),
            sends: Rc::new(SendBatch::new(shared.batching)),
            collected: Budget::new(COLLECTED_BYTES, COLLECTED_WITHIN),
            write_stall_limit: StallLimit {
                time: shared.limits.write_stall_timeout,
                timers: shared.timers.clone(),
            },
            close_timeout: Duration::from_secs(5),
            drain: CancellationToken::new(),
            stopping: Cell::new(false),
            gate: Gate::new(),
            shared,
        }
    }

    /// Whether a fence is the one of the policy that was loaded last.
    #[inline]
    pub(crate) fn is_in_force(&self, fence: &Arc<Fence>) -> bool {
        self.follow_policy();
        Arc::ptr_eq(&self.fence.borrow(), fence)
    }

    /// Takes the policy that was loaded last. It is called whenever a client has sent something: once a reload is
    /// reported, the old policy decides nothing that is sent afterwards.
    #[inline]
    fn follow_policy(&self) {
        let mut fences = self.fences.borrow_mut();
        if fences.has_changed().unwrap_or(false) {
            *self.fence.borrow_mut() = Arc::clone(&fences.borrow_and_update());
        }
    }

    /// Records a refusal, carried out or only observed.
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

    /// The fence's rules for a session.
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
