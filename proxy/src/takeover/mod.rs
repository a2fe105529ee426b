//! Takeovers: how a declared token is registered, raises the mark, and ends the sessions of lower tokens
//! (design, section 4). This is what carries the write fence.

mod barrier;
mod cluster_lock;
mod control;
mod error;
mod reaper;
mod release;
mod sessions;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{
    Authority, AuthorityError, Backend, Declaration, Declared, Mark, Scope, Token,
};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use cluster_lock::StoreLock;
pub use error::{BackendFault, ControlError, DeclareError, Holder, StartError};

use crate::fence::scope_cell::ScopeCells;
use barrier::Barriers;
use control::{Control, Plan};
use reaper::Reaper;
use release::Releases;

/// How takeovers are served.
#[derive(Debug, Clone)]
pub struct TakeoverOptions {
    /// Where the control connection goes: to the same cluster as the clients' sessions, without a pooler.
    pub control: tokio_postgres::Config,
    /// How long a declaration may take, takeover included. 5 s by default.
    pub timeout: Duration,
    /// What a takeover waits for.
    pub barrier: BarrierKind,
    /// Whether the store serves one proxy or several.
    pub store_lock: StoreLock,
    /// How long a start waits for a cluster lock that somebody holds. 10 s by default.
    pub lock_wait: Duration,
    /// How often records of ended sessions are removed. 30 s by default.
    pub reap_every: Duration,
    /// This proxy in words for people, kept with the marks: host and pid.
    pub declared_by: String,
}

impl TakeoverOptions {
    /// The defaults, for the embedded store.
    pub fn new(control: tokio_postgres::Config, declared_by: String) -> Self {
        Self {
            control,
            timeout: Duration::from_secs(5),
            barrier: BarrierKind::Cluster,
            store_lock: StoreLock::Exclusive,
            lock_wait: Duration::from_secs(10),
            reap_every: Duration::from_secs(30),
            declared_by,
        }
    }
}

/// What a takeover waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BarrierKind {
    /// Every old session of the cluster, through whatever proxy, is gone from pg_stat_activity.
    Cluster,
}

/// What a session declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declare {
    /// The scope.
    pub scope: Scope,
    /// The token.
    pub token: Token,
    /// The session, from [`Takeover::identify`].
    pub backend: Backend,
    /// Who declares, in words for people: user, database, application_name, address. The proxy adds itself.
    pub by: String,
}

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
    cells: Arc<ScopeCells>,
    control: Control,
    authority: Arc<dyn Authority>,
    barriers: Arc<Barriers>,
    releases: Arc<Releases>,
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
            store_lock,
            lock_wait,
            reap_every,
            declared_by,
            ..
        } = options;
        let BarrierKind::Cluster = options.barrier;
        let tasks = cancel.child_token();
        let guard = tasks.clone().drop_guard();
        let plan = Plan {
            config: control_config(options.control, timeout),
            timeout,
            authority: authority.identity(),
            lock: store_lock,
            lock_wait,
        };
        let control = Control::start(plan, tasks.clone()).await?;
        let cells = Arc::new(ScopeCells::default());
        for (scope, mark) in in_time(authority.marks(), Instant::now() + timeout)
            .await
            .map_err(start_error)?
        {
            cells.cell(&scope).raise(&mark);
        }
        let reaper = Reaper {
            control: control.clone(),
            authority: Arc::clone(&authority),
            timeout,
        };
        reaper.reap().await.map_err(start_error)?;
        tokio::spawn(reaper.run(reap_every, tasks.clone()));
        let releases = Arc::new(Releases::default());
        tokio::spawn(Arc::clone(&releases).run(Arc::clone(&authority), timeout, tasks));
        let barriers = Barriers::new(control.clone(), Arc::clone(&authority));
        let handle = Handle::current();
        let inner = Inner {
            handle,
            timeout,
            declared_by,
            cells,
            control,
            authority,
            barriers,
            releases,
            _tasks: guard,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// What this proxy knows of the marks.
    pub fn cells(&self) -> &Arc<ScopeCells> {
        &self.inner.cells
    }

    /// Finds the server session behind the pid that the server told at login. The answer stays true for as
    /// long as the session lives.
    ///
    /// Errors: [`DeclareError::Backend`] where a pooler sits in between or rights are missing,
    /// [`DeclareError::Control`].
    pub async fn identify(&self, pid: i32) -> Result<Backend, DeclareError> {
        let control = self.inner.control.clone();
        let deadline = Instant::now() + self.inner.timeout;
        self.run(async move { sessions::identify(&control, pid, deadline).await })
            .await
    }

    /// Declares a token. On success the session may write: no session with a lower token is left. The mark is
    /// the declared token.
    ///
    /// Bounded by the timeout. Goes on to its end when the caller's future is dropped.
    pub async fn declare(&self, declare: Declare) -> Result<Mark, DeclareError> {
        let cell = self.inner.cells.cell(&declare.scope);
        // The cache only rejects.
        if let Some(mark) = cell.mark_detail()
            && declare.token < mark.token
        {
            return Err(DeclareError::Stale { mark });
        }
        let inner = Arc::clone(&self.inner);
        self.run(async move { inner.declare(declare).await }).await
    }

    /// Tells that a session has ended normally: nothing in flight, Terminate sent, and the server closed
    /// its end. Does not
    /// wait. A declaration of the same session that comes later is taken later.
    pub fn release(&self, backend: Backend) {
        self.inner.releases.push(backend);
    }

    /// Runs a step on the own runtime, whatever becomes of the caller.
    async fn run<T: Send + 'static>(
        &self,
        step: impl Future<Output = Result<T, DeclareError>> + Send + 'static,
    ) -> Result<T, DeclareError> {
        self.inner.handle.spawn(step).await.unwrap_or_else(|error| {
            let why = format!("the step was given up: {error}");
            Err(DeclareError::Control(ControlError::Down(why.into())))
        })
    }
}

impl Inner {
    async fn declare(&self, declare: Declare) -> Result<Mark, DeclareError> {
        let Declare {
            scope,
            token,
            backend,
            by,
        } = declare;
        let deadline = Instant::now() + self.timeout;
        self.releases.wait_for(backend, deadline).await?;
        let by = format!("{by} via {}", self.declared_by);
        let declaration = Declaration {
            scope: &scope,
            token,
            backend,
            by: &by,
        };
        let declared = in_time(self.authority.declare(&declaration), deadline).await?;
        let cell = self.cells.cell(&scope);
        match declared {
            Declared::Stale { mark } => {
                cell.raise(&mark);
                Err(DeclareError::Stale { mark })
            }
            Declared::Accepted { mark, lower, .. } => {
                // From here on the old sessions of this proxy are refused; the barrier ends them all.
                cell.raise(&mark);
                if !lower.is_empty() {
                    self.barriers.pass(&scope, token, &lower, deadline).await?;
                }
                Ok(mark)
            }
        }
    }
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
fn control_config(mut config: tokio_postgres::Config, timeout: Duration) -> tokio_postgres::Config {
    config
        .application_name("pgpalisade control")
        .keepalives(true)
        .keepalives_idle(Duration::from_secs(10))
        .keepalives_interval(Duration::from_secs(3))
        .keepalives_retries(3)
        .tcp_user_timeout(Duration::from_secs(10));
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(timeout);
    }
    config
}
