//! Takeovers: how a declared token is registered, raises the mark, and ends the sessions of lower tokens
//! (design, section 4). This is what carries the write fence.

mod barrier;
mod bounds;
pub mod cluster_lock;
mod confirm;
pub mod control;
mod epoch;
pub mod error;
mod hosts;
mod meters;
mod options;
mod pace;
mod patrol;
pub mod prepare;
mod prepared;
mod reach;
mod reaper;
mod recover;
mod release;
mod repair;
mod sessions;
mod tenure;
mod watch;
pub mod witness;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{
    Authority, AuthorityError, Backend, Cluster, Declaration, Declared, IfStale, Mark, Outcome,
    Scope, Token,
};
use pgpalisade_policies::TokenBounds;
use pgpalisade_tls::Login;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use cluster_lock::StoreLock;
pub use error::{BackendFault, ControlError, DeclareError, Holder, StartError};
pub use pgpalisade_fence::rejection::Bound;
pub use recover::{RecoverError, Recovery};
pub use repair::{RepairError, RepairOptions, RepairReport, ScopeRepair, Work};

use barrier::{Barrier, Barriers};
use confirm::Confirmer;
pub use control::Primary;
use control::{Control, Plan};
use epoch::Epoch;
pub use hosts::Place;
pub use meters::Meters;
pub use options::{BarrierKind, TakeoverOptions, WitnessMode};
use pace::Pace;
use pgpalisade_fence::mark_cache::MarkCache;
pub use pgpalisade_fence::{Identified, Purpose, Terms};
use reach::Reach;
use reaper::Reaper;
use release::Releases;
pub use sessions::Trace;
pub use tenure::Tenure;
use tenure::Tenures;
use watch::Watcher;
use witness::Witness;

/// A stale session that is only observed goes on, and a takeover that is enforced has to find it.
const fn if_stale(purpose: Purpose) -> IfStale {
    match purpose {
        Purpose::Observe => IfStale::Register,
        Purpose::Admit | Purpose::ObserveUnregistered => IfStale::Refuse,
    }
}

/// Stands on the register for sessions that no takeover may end. No server process has this id, so whoever looks for it
/// finds it gone.
const NOBODY: Backend = Backend {
    pid: 0,
    started_us: 0,
};

/// Serves declarations. Clones share one; they can be used from any thread and any runtime, while all its own
/// work runs on the runtime it was started on. That ends with the last clone, or on cancellation.
#[derive(Clone)]
pub struct Takeover {
    inner: Arc<Inner>,
}

struct Inner {
    handle: Handle,
    timeout: Duration,
    declared_by: String,
    cells: Arc<MarkCache>,
    control: Control,
    authority: Arc<dyn Authority>,
    barriers: Arc<Barriers>,
    releases: Arc<Releases>,
    witness: Arc<Witness>,
    epoch: Arc<Epoch>,
    pace: Pace,
    meters: Meters,
    _tasks: DropGuard,
}

impl std::fmt::Debug for Takeover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let authority = self.inner.authority.identity();
        f.debug_struct("Takeover")
            .field("authority", &authority)
            .finish_non_exhaustive()
    }
}

impl Takeover {
    /// Connects the control connection, takes the cluster's lock, learns the marks and removes the records
    /// of sessions that are gone.
    ///
    /// Errors: no connection, missing rights, a standby, another authority or a second proxy on an embedded
    /// store, and
    /// an authority that does not answer.
    pub async fn start(
        options: TakeoverOptions,
        authority: Arc<dyn Authority>,
        cancel: CancellationToken,
    ) -> Result<Self, StartError> {
        let TakeoverOptions {
            timeout,
            declared_by,
            meters,
            ..
        } = options;
        let BarrierKind::Cluster = options.barrier;
        let tasks = cancel.child_token();
        let guard = tasks.clone().drop_guard();
        let cells = Arc::new(MarkCache::default());
        let authority = Reach::of(authority, meters.clone());
        // Before the marks are read, so that no raise falls between the two.
        let changes = authority.watch();
        let plan = Plan {
            login: control_login(options.control),
            tenures: Arc::new(Tenures::default()),
            timeout,
            authority: Arc::clone(&authority),
            cells: Arc::clone(&cells),
            lock: options.store_lock,
            witness: options.witness,
            lock_wait: options.lock_wait,
            meters: meters.clone(),
        };
        let (control, ours) = Control::start(plan, tasks.clone()).await?;
        let watcher = Watcher::new(&control, &cells, ours, &declared_by);
        tokio::spawn(watcher.run(changes, tasks.clone()));
        let confirmer = Confirmer {
            authority: Arc::clone(&authority),
            cells: Arc::clone(&cells),
            timeout,
        };
        confirmer.learn_all().await.map_err(start_error)?;
        tokio::spawn(confirmer.run(tasks.clone()));
        let epoch = Epoch::new(&control, &authority, &declared_by, timeout);
        epoch.raise().await.map_err(start_error)?;
        let reaper = Reaper(Arc::clone(&epoch));
        reaper.reap().await.map_err(start_error)?;
        tokio::spawn(reaper.run(options.reap_every, tasks.clone()));
        let releases = Arc::new(Releases::default());
        tokio::spawn(Arc::clone(&releases).run(Arc::clone(&authority), timeout, tasks));
        let barriers = Barriers::new(control.clone(), Arc::clone(&authority), meters.clone());
        let inner = Inner {
            handle: Handle::current(),
            timeout,
            declared_by,
            cells,
            witness: Arc::clone(&epoch.witness),
            epoch,
            control,
            authority,
            barriers,
            releases,
            pace: Pace::default(),
            meters,
            _tasks: guard,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// What this proxy knows of the marks.
    pub fn cells(&self) -> &Arc<MarkCache> {
        &self.inner.cells
    }

    /// What is counted and measured.
    pub fn meters(&self) -> &Meters {
        &self.inner.meters
    }

    /// The cluster that the control connection leads to, while it is up.
    pub fn cluster(&self) -> Option<Cluster> {
        self.inner.control.cluster()
    }

    /// When a declaration that begins now has to be answered: all of it, whatever number of scopes it is for.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.inner.timeout
    }

    /// Finds the server session that has the pid which the server told at login, and that was the last to send this
    /// trace. The answer stays true for as long as the session lives.
    ///
    /// Errors: [`DeclareError::Backend`] where a pooler sits in between, the control connection leads elsewhere, or
    /// rights are missing, [`DeclareError::Control`].
    pub async fn identify(
        &self,
        pid: i32,
        trace: Trace,
        deadline: Instant,
    ) -> Result<Identified, DeclareError> {
        let inner = Arc::clone(&self.inner);
        let find = async move {
            let found = sessions::identify(&inner.control, pid, &trace, deadline).await;
            if let Err(DeclareError::Backend { .. }) = found {
                // The address may lead to another server by now.
                inner.control.look_again();
            }
            found
        };
        self.run(find).await
    }

    /// Asks the authority, so that it is known whether it answers.
    ///
    /// Errors: those of the authority; it has time until the deadline.
    pub async fn ask_authority(&self, deadline: Instant) -> Result<(), DeclareError> {
        let inner = Arc::clone(&self.inner);
        let ask = async move { in_time(inner.authority.cluster(), deadline).await };
        self.run(ask).await.map(drop)
    }

    /// Every proxy that is connected to the cluster, this one among them.
    ///
    /// Errors: [`DeclareError::Control`]; it has time until the deadline.
    pub async fn proxies(
        &self,
        deadline: Instant,
    ) -> Result<Vec<cluster_lock::Proxy>, DeclareError> {
        let inner = Arc::clone(&self.inner);
        let ask = async move { cluster_lock::all(&inner.control, deadline).await };
        self.run(async { ask.await.map_err(DeclareError::Control) })
            .await
    }

    /// Where the primary is, while the control connection is up.
    pub fn primary(&self) -> Option<Primary> {
        self.inner.control.primary()
    }

    /// Where the primary is, once the control connection is up; `None` where the proxy stops.
    pub async fn find_primary(&self) -> Option<Primary> {
        self.inner.control.find_primary().await
    }

    /// Why no primary is known.
    pub fn why_no_primary(&self) -> Arc<str> {
        self.inner.control.why_down()
    }

    /// Declares a token, or takes the next one. On success the session may write: no session with a lower token is
    /// left. The mark is its token. The terms say how far it may rise, and what becomes of a stale one; this proxy adds
    /// itself to who declares.
    ///
    /// Bounded by its deadline. Goes on to its end when the caller's future is dropped.
    pub async fn declare(
        &self,
        declaration: Declaration,
        terms: Terms,
        deadline: Instant,
    ) -> Result<Mark, DeclareError> {
        let cell = self.inner.cells.find(&declaration.scope);
        bounds::check_token(&declaration, terms.bounds, cell.as_deref())?;
        // The cache only rejects. What it rejects is looked up soon after: it may be behind a repair. One that is only
        // observed goes on all the same, so the authority has to know of it.
        if terms.purpose != Purpose::Observe
            && let Some(token) = declaration.claim.token()
            && let Some(mark) = cell.and_then(|cell| cell.mark_above(token))
        {
            return Err(DeclareError::Stale { mark });
        }
        let (cells, pace) = (&self.inner.cells, &self.inner.pace);
        bounds::check_growth(&declaration, terms.bounds, cells, pace)?;
        let inner = Arc::clone(&self.inner);
        self.run(async move { inner.declare(declaration, terms, deadline).await })
            .await
    }

    /// Tells that a session has ended normally: nothing in flight, Terminate sent, and the server closed
    /// its end. Does not wait. No other session is released: one that lives stays on the register, whatever it holds.
    pub fn release(&self, backend: Backend) {
        self.inner.releases.push(backend);
    }

    /// Runs a step on the own runtime, whatever becomes of the caller.
    async fn run<T: Send + 'static>(
        &self,
        step: impl Future<Output = Result<T, DeclareError>> + Send + 'static,
    ) -> Result<T, DeclareError> {
        self.inner.handle.spawn(step).await.unwrap_or_else(|error| {
            // As unanswered as by a store that is away: nobody knows how far it got.
            let why = format!("the step was given up: {error}");
            Err(DeclareError::Authority(AuthorityError::Unavailable(why)))
        })
    }
}

impl Inner {
    async fn declare(
        &self,
        mut declaration: Declaration,
        Terms { purpose, bounds }: Terms,
        deadline: Instant,
    ) -> Result<Mark, DeclareError> {
        if purpose == Purpose::ObserveUnregistered {
            declaration.backend = NOBODY;
        }
        declaration.by = format!("{} via {}", declaration.by, self.declared_by);
        declaration.max_step = bounds.max_step;
        declaration.max_token = bounds.max_token;
        declaration.if_stale = if_stale(purpose);
        self.epoch.note_joining();
        // The watch may tell of it before the answer comes.
        let before = self.cells.find(&declaration.scope);
        let before = before.and_then(|cell| cell.mark());
        let declared = in_time(self.authority.declare(&declaration), deadline).await?;
        let claim = declaration.claim;
        let Declaration { scope, cluster, .. } = declaration;
        match declared {
            Declared::Stale { mark } => {
                self.cells.note(&scope, &mark);
                Err(DeclareError::Stale { mark })
            }
            Declared::TooFar { mark } => {
                self.cells.note(&scope, &mark);
                Err(bounds::too_far(mark, claim, bounds))
            }
            Declared::MarkIsLower { mark } => {
                if let Some(mark) = &mark {
                    self.cells.note(&scope, mark);
                }
                Err(DeclareError::MarkIsLower { mark })
            }
            Declared::OtherCluster { recorded } => Err(self.on_other_cluster(cluster, recorded)),
            Declared::Accepted {
                mark,
                outcome,
                lower,
            } => {
                if outcome == Outcome::Raised {
                    self.meters.marks_raised.inc();
                    let from = before.map(Token::get);
                    let (to, sessions) = (mark.token.get(), lower.len());
                    let raised_by = &mark.raised_by;
                    tracing::info!(%scope, from, to, raised_by, sessions, "the mark is raised");
                }
                // From here on the old sessions of this proxy are refused; the barrier ends them all.
                self.cells.note(&scope, &mark);
                if purpose != Purpose::Admit {
                    self.witness.record_later(scope, mark.clone(), deadline);
                    return Ok(mark);
                }
                if outcome == Outcome::Current && lower.is_empty() {
                    self.meet_prepared(bounds, &scope, &mark, deadline).await?;
                    // A takeover that was completed before: its token binds without the control connection.
                    self.witness.record_later(scope, mark.clone(), deadline);
                    return Ok(mark);
                }
                let barrier = barrier_of(scope, &mark, cluster);
                self.barriers.pass(&barrier, &lower, deadline).await?;
                self.meet_prepared(bounds, &barrier.scope, &mark, deadline)
                    .await?;
                self.report_prepared();
                self.witness.record(&barrier.scope, &mark, deadline).await?;
                self.check_incarnation(&barrier.scope, mark)
            }
        }
    }

    /// What the policy says about prepared transactions that are older than the mark.
    async fn meet_prepared(
        &self,
        bounds: TokenBounds,
        scope: &Scope,
        mark: &Mark,
        deadline: Instant,
    ) -> Result<(), DeclareError> {
        let policy = bounds.prepared.unwrap_or_default();
        prepared::meet(&self.control, policy, (scope, mark), deadline).await
    }

    /// Names in the log what a takeover leaves. Nobody waits for it.
    fn report_prepared(&self) {
        let control = self.control.clone();
        let deadline = Instant::now() + self.timeout;
        tokio::spawn(async move { prepared::report(&control, deadline).await });
    }

    /// While the barrier ran the scope may have been repaired. The session is then one of those that the repair ends,
    /// and is not told that it may write.
    fn check_incarnation(&self, scope: &Scope, mark: Mark) -> Result<Mark, DeclareError> {
        match self.cells.cell(scope).mark_detail() {
            Some(now) if now.incarnation > mark.incarnation => {
                Err(DeclareError::Stale { mark: now })
            }
            _ => Ok(mark),
        }
    }

    /// A session's cluster had been accepted before. So it is either deposed, or the authority has forgotten it.
    fn on_other_cluster(&self, ours: Cluster, recorded: Option<Cluster>) -> DeclareError {
        match recorded {
            Some(recorded) if recorded.follows(&ours) || !same_system(recorded, ours) => {
                self.cells.cluster().note(ours, recorded);
                self.control.note_record(recorded);
                self.control.renew();
                DeclareError::WrongCluster { ours, recorded }
            }
            _ => DeclareError::Authority(AuthorityError::WentBack(
                "it does not know the cluster that was on record; stop all proxies of this cluster and run \
                 \"pgpalisade recover\""
                    .to_owned(),
            )),
        }
    }
}

fn barrier_of(scope: Scope, mark: &Mark, cluster: Cluster) -> Barrier {
    Barrier {
        scope,
        rank: mark.rank(),
        cluster,
    }
}

fn same_system(a: Cluster, b: Cluster) -> bool {
    a.system_identifier == b.system_identifier
}

/// An answer of the authority, or an error once the time is over.
async fn in_time<T>(
    answer: impl Future<Output = Result<T, AuthorityError>>,
    deadline: Instant,
) -> Result<T, DeclareError> {
    let late = || AuthorityError::Unavailable("it did not answer in time".to_owned());
    let answer = timeout_at(deadline, answer)
        .await
        .unwrap_or_else(|_| Err(late()));
    answer.map_err(DeclareError::Authority)
}

fn start_error(error: DeclareError) -> StartError {
    match error {
        DeclareError::Authority(error) => StartError::Authority(error),
        DeclareError::Control(error) => StartError::Control(error),
        other => StartError::Control(ControlError::Down(other.to_string().into())),
    }
}

/// What every control connection has, whatever the operator's DSN says.
fn control_login(mut login: Login) -> Login {
    login.config.application_name("pgpalisade control");
    login
}
