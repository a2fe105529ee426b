//! Takeovers: how a declared token is registered, raises the mark, and ends the sessions of lower tokens. The write
//! fence rests on them: `docs/guarantee.md`, under "Why it holds".

mod barrier;
mod barriers;
mod bounds;
pub mod cluster_lock;
mod confirm;
mod connection;
pub mod control;
mod control_error;
mod declare;
mod driver;
mod elected;
mod epoch;
pub mod error;
mod history;
mod hosts;
mod lease;
mod machine;
mod metered_authority;
mod meters;
mod options;
mod pace;
mod patrol;
mod plan;
pub mod prepare;
mod prepared;
mod primary_term;
mod reaper;
mod recover;
mod release;
mod repair;
mod sessions;
#[cfg(test)]
#[path = "tests/mod.rs"]
mod simulation;
mod upkeep;
mod watch;
pub mod witness;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{
    Authority, AuthorityError, Backend, Cluster, Declaration, Mark, Scope, TakeoverRecord,
};
use pgpalisade_tls::Login;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use cluster_lock::StoreLock;
pub use control_error::ControlError;
pub use error::{DeclareError, LockHolder, StartError};
pub use pgpalisade_fence::rejection::Bound;
pub use recover::{RecoverError, Recovery};
pub use repair::{RepairError, RepairReport, ScopeRepair, Work};

use barriers::Barriers;
use connection::ControlConfig;
pub use connection::Primary;
use control::Control;
use driver::Driver;
pub use elected::{Elected, Elections};
use history::Notes;
pub use hosts::HostAddress;
use lease::LeaseQueues;
pub use lease::{Acquired, Lease};
use metered_authority::MeteredAuthority;
pub use meters::Meters;
pub use options::{TakeoverOptions, WitnessMode};
use pace::Pace;
use pgpalisade_fence::mark_cache::MarkCache;
pub use pgpalisade_fence::{Identified, Purpose, Terms};
pub use primary_term::PrimaryTerm;
pub use sessions::SessionProbe;
use upkeep::Upkeep;
use watch::Watcher;

/// Serves declarations. Clones share one service and work on any thread and runtime. Its own tasks run on the runtime
/// that started it, until the last clone is dropped or on cancellation.
#[derive(Clone)]
pub struct Takeover {
    inner: Arc<Inner>,
}

struct Inner {
    handle: Handle,
    timeout: Duration,
    declared_by: String,
    marks: Arc<MarkCache>,
    driver: Driver,
    barriers: Arc<Barriers>,
    releases: mpsc::Sender<Backend>,
    lease_queues: Arc<LeaseQueues>,
    upkeep: Arc<Upkeep>,
    pace: Pace,
    meters: Meters,
    _tasks: DropGuard,
}

impl std::fmt::Debug for Takeover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Takeover({})", self.inner.driver.authority.identity())
    }
}

impl Takeover {
    /// Connects the control connection, takes the cluster's lock, reads the marks, and removes the records of
    /// sessions that are gone.
    ///
    /// Errors: no connection, missing rights, a standby, another authority or a second proxy on an embedded store,
    /// and an authority that does not answer.
    pub async fn start(
        mut options: TakeoverOptions,
        authority: Arc<dyn Authority>,
        cancel: CancellationToken,
    ) -> Result<Self, StartError> {
        options.control = control_login(options.control);
        let (timeout, reap_every) = (options.timeout, options.reap_every);
        let (declared_by, meters) = (options.declared_by.clone(), options.meters.clone());
        let tasks = cancel.child_token();
        let guard = tasks.clone().drop_guard();
        let marks = Arc::new(MarkCache::default());
        let authority = MeteredAuthority::of(authority, meters.clone());
        // Before the marks are read, so that no raise is missed.
        let changes = authority.watch();
        let config = ControlConfig {
            options,
            authority: Arc::clone(&authority),
            marks: Arc::clone(&marks),
            primary_terms: Arc::default(),
        };
        let (control, ours) = Control::start(config, tasks.clone()).await?;
        let watcher = Watcher {
            control: control.clone(),
            marks: Arc::clone(&marks),
            ours,
            declared_by: declared_by.clone(),
        };
        spawn_until(&tasks, watcher.run(changes));
        let deadline = Instant::now() + timeout;
        for (scope, mark) in in_time(authority.marks(), deadline).await? {
            marks.note(&scope, &mark);
        }
        let confirming = confirm::run(Arc::clone(&authority), Arc::clone(&marks), timeout);
        spawn_until(&tasks, confirming);
        let driver = Driver::new(&control, &authority);
        let upkeep = Arc::new(Upkeep::new(&driver, &declared_by, timeout));
        upkeep.raise().await?;
        upkeep.reap().await?;
        spawn_until(&tasks, Arc::clone(&upkeep).run(reap_every));
        let (releases, waiting) = mpsc::channel(release::LIMIT);
        let releasing = release::run(waiting, Arc::clone(&authority), timeout);
        spawn_until(&tasks, releasing);
        let notes = Notes::to(&authority, timeout);
        spawn_until(&tasks, notes.clone().run());
        let lease_queues = LeaseQueues::new(&authority, timeout, &meters);
        let barriers = Barriers::new(&driver, &meters, notes);
        let inner = Arc::new(Inner {
            handle: Handle::current(),
            timeout,
            declared_by,
            marks,
            driver,
            barriers,
            releases,
            lease_queues,
            upkeep,
            pace: Pace::default(),
            meters,
            _tasks: guard,
        });
        Ok(Self { inner })
    }

    /// Marks that this proxy knows.
    pub fn marks(&self) -> &Arc<MarkCache> {
        &self.inner.marks
    }

    /// Counters and measurements.
    pub fn meters(&self) -> &Meters {
        &self.inner.meters
    }

    /// Cluster of the control connection, while it is up.
    pub fn cluster(&self) -> Option<Cluster> {
        self.inner.driver.control.cluster()
    }

    /// Deadline of a declaration that begins now, whatever number of scopes it is for.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.inner.timeout
    }

    /// Finds the server session with the pid that the server reported at login. It must be the last that sent this
    /// probe. The answer stays true as long as the session lives.
    ///
    /// Errors: [`DeclareError::Backend`] if a pooler sits in between, the control connection leads elsewhere, or
    /// rights are missing; [`DeclareError::Control`].
    pub async fn identify(
        &self,
        pid: i32,
        probe: SessionProbe,
        deadline: Instant,
    ) -> Result<Identified, DeclareError> {
        let inner = Arc::clone(&self.inner);
        let find = async move {
            let found = sessions::identify(&inner.driver.control, pid, &probe, deadline).await;
            if let Err(DeclareError::Backend { .. }) = found {
                // The address may lead to another server by now.
                inner.driver.control.look_again();
            }
            found
        };
        self.run(find).await
    }

    /// Asks the authority, to learn whether it answers.
    ///
    /// Errors: those of the authority; it has time until the deadline.
    pub async fn ask_authority(&self, deadline: Instant) -> Result<(), DeclareError> {
        let inner = Arc::clone(&self.inner);
        let ask = async move { in_time(inner.driver.authority.cluster(), deadline).await };
        self.run(ask).await.map(drop)
    }

    /// The last takeovers, newest first.
    ///
    /// Errors: those of the authority; it has time until the deadline.
    pub async fn history(
        &self,
        deadline: Instant,
    ) -> Result<Vec<(Scope, TakeoverRecord)>, DeclareError> {
        let inner = Arc::clone(&self.inner);
        let ask = async move { in_time(inner.driver.authority.takeovers(None), deadline).await };
        self.run(ask).await
    }

    /// The last takeovers of these scopes, newest first.
    ///
    /// Errors: those of the authority; it has time until the deadline.
    pub async fn history_of(
        &self,
        scopes: Vec<Scope>,
        deadline: Instant,
    ) -> Result<Vec<(Scope, TakeoverRecord)>, DeclareError> {
        let inner = Arc::clone(&self.inner);
        self.run(async move { history::of(&inner.driver.authority, &scopes, deadline).await })
            .await
    }

    /// Every proxy that is connected to the cluster, including this one.
    ///
    /// Errors: [`DeclareError::Control`], also at the deadline.
    pub async fn proxies(
        &self,
        deadline: Instant,
    ) -> Result<Vec<cluster_lock::Proxy>, DeclareError> {
        let inner = Arc::clone(&self.inner);
        let ask = async move { Ok(cluster_lock::all(&inner.driver.control, deadline).await?) };
        self.run(ask).await
    }

    /// The primary, while the control connection is up.
    pub fn primary(&self) -> Option<Primary> {
        self.inner.driver.control.primary()
    }

    /// Waits until a primary is known; `None` if the proxy stops.
    pub async fn find_primary(&self) -> Option<Primary> {
        self.inner.driver.control.find_primary().await
    }

    /// Reason why no primary is known.
    pub fn why_no_primary(&self) -> Arc<str> {
        self.inner.driver.control.why_down()
    }

    /// Declares a token, or takes the next one. After success the session may write: the mark is its token, and no
    /// session with a lower one is left. The terms limit how far the mark may rise, and decide what happens to a
    /// stale token. This proxy adds its own name to that of the declarer.
    ///
    /// Bounded by its deadline. Runs to its end even if the caller drops the future.
    pub async fn declare(
        &self,
        declaration: Declaration,
        terms: Terms,
        deadline: Instant,
    ) -> Result<Mark, DeclareError> {
        self.check(&declaration, &terms)?;
        let inner = Arc::clone(&self.inner);
        self.run(async move { inner.declare(declaration, terms, deadline).await })
            .await
    }

    /// Refuses a declaration that is out of bounds or stale, as far as this proxy knows.
    pub fn check(&self, declaration: &Declaration, terms: &Terms) -> Result<(), DeclareError> {
        let cached = self.inner.marks.find(&declaration.scope);
        bounds::check_token(declaration, &terms.bounds, cached.as_deref())?;
        // The cache only rejects, and the confirmer soon looks up each rejection, since the cache may not know of a
        // repair yet. A session that is only observed continues all the same, so the authority must know of it.
        if terms.purpose != Purpose::Observe
            && let Some(token) = declaration.claim.token()
            && let Some(mark) = cached.and_then(|cached| cached.mark_above(token))
        {
            return Err(DeclareError::Stale { mark });
        }
        let (marks, pace) = (&self.inner.marks, &self.inner.pace);
        bounds::check_growth(declaration, &terms.bounds, marks, pace)
    }

    /// Reports that a session has ended normally: nothing in flight, Terminate sent, and the connection closed by the
    /// server. Does not wait. No other session is released: a session that lives stays registered, whatever it holds.
    pub fn release(&self, backend: Backend) {
        release::push(&self.inner.releases, backend);
    }

    /// Runs a step on the takeover's own runtime, even if the caller goes away.
    async fn run<T: Send + 'static>(
        &self,
        step: impl Future<Output = Result<T, DeclareError>> + Send + 'static,
    ) -> Result<T, DeclareError> {
        self.inner.handle.spawn(step).await.unwrap_or_else(|error| {
            // Like an unavailable store: it is unknown how far the step got.
            let why = format!("the step was abandoned: {error}");
            Err(DeclareError::Authority(AuthorityError::Unavailable(why)))
        })
    }
}

/// Runs a task in the background until `cancel`.
fn spawn_until(cancel: &CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(cancel.clone().run_until_cancelled_owned(task));
}

/// The authority's answer, or an error after the deadline.
async fn in_time<T>(
    answer: impl Future<Output = Result<T, AuthorityError>>,
    deadline: Instant,
) -> Result<T, DeclareError> {
    let late = || AuthorityError::Unavailable("it did not answer in time".to_owned());
    let answer = timeout_at(deadline, answer).await;
    Ok(answer.unwrap_or_else(|_| Err(late()))?)
}

/// Sets what every control connection has, whatever the operator's DSN says.
fn control_login(mut login: Login) -> Login {
    login.config.application_name("pgpalisade control");
    login
}
