//! What the connections of one worker thread share: nothing of it has to be locked.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pgpalisade_policies::{Network, VerdictCache, Who};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::accounts::Logins;
use crate::arrivals::Arrivals;
use crate::certificates::Certificates;
use crate::classification::Classification;
use crate::client_table::ClientTable;
use crate::collected::Budget;
use crate::fence::{Fence, SessionFence};
use crate::hosts::Hosts;
use crate::metrics::{Clock, Metrics, WorkerTally};
use crate::pause::{Gate, Pause};
use crate::rejection::{Enforcement, Rejection};
use crate::rejection_log::{
    ClientAddr, RecordedStatement, RejectionLog, RejectionRecord, SessionLabel,
};
use crate::takeover::Takeover;
use crate::timers::Timers;
use crate::transport::{Batching, Scratch, SendBatch, StallLimit};

/// Verdicts of one worker may take this many bytes.
const VERDICT_CACHE_BYTES: usize = 16 * 1024 * 1024;

/// What has arrived of texts that are not whole may take this many bytes in one worker.
const COLLECTED_BYTES: usize = 32 * 1024 * 1024;

/// Time from the first look at such a text to its last byte.
const COLLECTED_WITHIN: Duration = Duration::from_secs(30);

/// The servers of the protected cluster.
#[derive(Clone)]
pub struct Servers {
    /// Where sessions go.
    pub upstream: Hosts,
    /// Where the control connection finds each of them.
    pub control: Hosts,
}

/// What holds for every connection of a client.
#[derive(Debug, Clone)]
pub struct ClientLimits {
    /// Networks of load balancers that say in front of a connection where its client is.
    pub proxy_protocol: Vec<Network>,
    /// Time from connecting to the end of the login.
    pub login_timeout: Duration,
    /// A client that accepts no byte for this long is disconnected; `None`: never.
    pub write_stall_timeout: Option<Duration>,
    /// Idle time before TCP keep-alive probes; `None`: no probes.
    pub tcp_keepalive: Option<Duration>,
}

impl ClientLimits {
    /// Whether a connection from there begins with a header of the PROXY protocol.
    pub(crate) fn comes_proxied(&self, peer: ClientAddr) -> bool {
        let networks = &self.proxy_protocol;
        peer.ip()
            .is_some_and(|ip| networks.iter().any(|network| network.contains(ip)))
    }
}

/// When the log was last told of a PROXY protocol header that is missing or not expected: anybody can cause that.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadersTold(Arc<Mutex<Option<Instant>>>);

impl HeadersTold {
    /// Whether the log is to be told: once a minute.
    pub(crate) fn is_due(&self) -> bool {
        const EVERY: Duration = Duration::from_secs(60);
        let mut told = self.0.lock();
        let is_due = told.is_none_or(|told| told.elapsed() >= EVERY);
        if is_due {
            *told = Some(Instant::now());
        }
        is_due
    }
}

/// What all workers have in common.
#[derive(Clone)]
pub struct Shared {
    /// Declarations and releases.
    pub takeover: Takeover,
    /// The decision, and every new one that a reload makes.
    pub fence: watch::Receiver<Arc<Fence>>,
    /// Verdicts on texts that take long.
    pub(crate) classification: Classification,
    /// The record of rejections.
    pub rejections: RejectionLog,
    /// What is counted.
    pub metrics: Metrics,
    /// Who is connected.
    pub connected: ClientTable,
    /// The servers of the protected cluster.
    pub servers: Servers,
    /// TLS of both legs.
    pub certificates: Arc<Certificates>,
    /// How clients log in.
    pub(crate) logins: Logins,
    /// Connections that have not logged in, and the places for those that do.
    pub(crate) arrivals: Arrivals,
    /// What holds for every connection of a client.
    pub(crate) limits: ClientLimits,
    /// When the log was told of PROXY protocol headers.
    pub(crate) headers_told: HeadersTold,
    /// Whether operators hold them up.
    pub pause: Pause,
    /// How many sends go to the system in one call.
    pub(crate) batching: Batching,
    /// What measures these times.
    pub timers: Timers,
    /// How all of them are ended.
    pub(crate) ending: Ending,
}

/// The two steps in which the connections of a process end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ending {
    /// Ends new logins and idle sessions.
    pub(crate) drain: CancellationToken,
    /// Ends everything at once.
    pub(crate) abort: CancellationToken,
}

/// What the connections of one worker share. Nothing in it is shared with another thread but by
/// handles that need no lock on the way of a message.
pub(crate) struct Worker {
    /// What all workers have in common.
    pub(crate) shared: Shared,
    /// Tells of every new fence that a reload makes.
    fences: RefCell<watch::Receiver<Arc<Fence>>>,
    /// The newest of them that was seen.
    fence: RefCell<Arc<Fence>>,
    /// Verdicts on texts, by text and form.
    pub(crate) verdicts: RefCell<VerdictCache>,
    /// What this worker counts.
    pub(crate) tally: WorkerTally,
    /// Measures the time that it adds.
    pub(crate) clock: Clock,
    /// The buffer that all connections read into.
    pub(crate) scratch: RefCell<Scratch>,
    /// What the connections have to send.
    pub(crate) sends: Rc<SendBatch>,
    /// Room for texts that have not arrived whole.
    pub(crate) collected: Budget,
    /// A client that takes no byte for this long is given up.
    pub(crate) write_stall_limit: StallLimit,
    /// How long the server may take to close after a goodbye.
    pub(crate) close_timeout: Duration,
    /// Cancelled when `stopping` is set, to wake idle connections.
    pub(crate) drain: CancellationToken,
    /// Sessions end as soon as they are idle.
    pub(crate) stopping: Cell<bool>,
    /// Shut while operators hold sessions up.
    pub(crate) gate: Gate,
}

impl Worker {
    pub(crate) fn new(shared: Shared) -> Self {
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

    /// Takes the policy that was loaded last. Asked for it whenever a client has sent something: once a reload has said
    /// that a policy is in force, nothing that is sent is judged by the one before.
    #[inline]
    fn follow_policy(&self) {
        let mut fences = self.fences.borrow_mut();
        if fences.has_changed().unwrap_or(false) {
            *self.fence.borrow_mut() = Arc::clone(&fences.borrow_and_update());
        }
    }

    /// Takes a refusal down, carried out or only observed.
    pub(crate) fn record(
        &self,
        rejection: &Rejection,
        label: &SessionLabel,
        statement: RecordedStatement,
        enforcement: Enforcement,
    ) {
        let Shared {
            rejections,
            metrics,
            ..
        } = &self.shared;
        match label.is_authenticated() {
            true => metrics.rejected(rejection, enforcement),
            false => metrics.rejected_unproved(rejection, enforcement),
        }
        let record = RejectionRecord::new(rejection, label, statement, enforcement);
        rejections.record(record);
    }

    /// What holds for a session.
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
