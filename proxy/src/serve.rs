//! The proxy as a whole: authority, takeovers, workers, listeners, and their orderly end.

use std::fmt::Display;
use std::io;
use std::iter::zip;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgpalisade_fence::Fence;
use pgpalisade_policies::Mode;
use pgpalisade_rejection_log::RejectionLog;
use pgpalisade_server::accept::Accepting;
use pgpalisade_server::accounts::Logins;
use pgpalisade_server::certificates::Certificates;
use pgpalisade_server::leadership::{Grant, Leaderships};
use pgpalisade_server::listener::{ListenAddr, Listener};
use pgpalisade_server::worker::ClusterServers;
use pgpalisade_server::{SETTLE_WITHIN, Server, ServerOptions};
use pgpalisade_takeover::Takeover;
use rustix::system::uname;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::config::{AuthorityLocation, Config, Flags, HttpAddr, RawConfig};
use crate::console::{Facts, OpenConsole, Orders, Reloaded, Users};
use crate::handover::{self, Predecessor, Successor};
use crate::http::{HttpError, HttpListener, HttpServer};
use crate::in_force::InForce;
use crate::policy_file::Loaded;
use crate::reload::Reload;
use crate::{elections, service_manager, store};

const RETRY_PAUSE: Duration = Duration::from_millis(100);

const UNOPENED: &str = "cannot open the token authority";

pub(crate) struct Equipment {
    pub policy: Loaded,
    pub rejections: RejectionLog,
    pub certificates: Arc<Certificates>,
    pub logins: Logins,
    pub users: Users,
    /// The last one is the console's, if it has one.
    pub listeners: Vec<Listener>,
    /// `None` also while the predecessor has the address.
    pub http: Option<HttpListener>,
    /// Has the listeners until this process serves.
    pub predecessor: Option<Predecessor>,
}

/// Serves until it is ordered to stop, or a new process takes over. Then sessions get the configured time to finish
/// their transactions. `begun` is with what the process began, to say what a restart would change; `announce` gets the
/// addresses once connections are accepted.
///
/// # Errors
///
/// The reason, if it cannot begin to serve.
pub(crate) async fn serve(
    config: Config,
    mut equipment: Equipment,
    begun: (Flags, RawConfig),
    (orders, reloads): (Orders, mpsc::Receiver<Option<Reloaded>>),
    announce: impl FnOnce(&[ListenAddr]),
) -> Result<(), String> {
    let config = Arc::new(config);
    let (shutdown, closing) = (orders.shutdown.clone(), orders.closing.clone());
    let starting = start(&config, &equipment.listeners, &mut equipment.predecessor);
    // A process that has not taken over leaves everything to its predecessor.
    let started = shutdown.run_until_cancelled(starting).await;
    let Some(takeover) = started.transpose()? else {
        return Ok(());
    };
    let policy = std::mem::take(&mut equipment.policy);
    let (fences, in_force) = put_into_force(&config, policy, &takeover, &shutdown)?;
    let mut leaderships = Leaderships::default();
    let grants = grants(&config, &mut leaderships)?;
    let options = options(&config, &equipment, &takeover, &fences, &leaderships);
    let server = Server::start(options).map_err(told("cannot start a worker thread"))?;
    let settings = begun.1.clone();
    let reload = Reload {
        begun: Arc::new(begun),
        config: Arc::clone(&config),
        rejections: equipment.rejections,
        certificates: equipment.certificates,
        logins: equipment.logins,
        operators: equipment.users.accounts.clone(),
        takeover: takeover.clone(),
        fences,
        in_force: in_force.clone(),
    };
    let reloading = tokio::spawn(reload.run(reloads));
    let facts = Arc::new(Facts {
        shared: server.shared().clone(),
        leaderships,
        settings,
        authority: config.takeover.authority.to_string(),
        in_force,
    });
    if let Some(mut old) = equipment.predecessor.take() {
        old.take_over(&equipment.listeners).await;
    }
    let served = Arc::clone(&facts);
    let console = config.console.as_ref();
    let console = console.and_then(|_| equipment.listeners.pop());
    let open = |listener| OpenConsole::open(listener, equipment.users, orders.clone(), facts);
    let console = console.map(open);
    let accepting = server.accept(zip(equipment.listeners, grants).collect());
    announce(&accepting.addresses());
    let http = start_http(config.http.clone(), equipment.http, served, closing.clone());
    let http = AbortOnDropHandle::new(tokio::spawn(http));

    let successor = successor(&accepting, console.as_ref(), &orders);
    let successor = closing.run_until_cancelled(successor).await;
    accepting.close().await;
    if successor.is_some() {
        drop((http, console));
        server.settle(&shutdown).await;
    } else {
        server.all_left(&shutdown).await;
    }
    server.stop(config.shutdown_grace).await;
    takeover.give_back_leases().await;
    // It has a share of the rejection log, which is written to its end with the last one.
    reloading.abort();
    let _ = reloading.await;
    Ok(())
}

/// Puts the policy into force, and follows its elections.
fn put_into_force(
    config: &Config,
    loaded: Loaded,
    takeover: &Takeover,
    shutdown: &CancellationToken,
) -> Result<(watch::Sender<Arc<Fence>>, InForce), String> {
    let cells = Arc::clone(takeover.marks());
    let fence = Fence::new(loaded.policy, cells, config.policy.mode)
        .map_err(told("the policy names an invalid scope"))?;
    let in_force = InForce::new(loaded.sha256, config.policy.mode);
    let (fences, fence) = watch::channel(Arc::new(fence));
    let following = elections::follow(takeover.clone(), fence, shutdown.clone());
    drop(tokio::spawn(following));
    Ok((fences, in_force))
}

fn options(
    config: &Config,
    equipment: &Equipment,
    takeover: &Takeover,
    fences: &watch::Sender<Arc<Fence>>,
    leaderships: &Leaderships,
) -> ServerOptions {
    ServerOptions {
        workers: config.workers,
        max_connections: config.clients.max_connections,
        servers: ClusterServers {
            upstream: config.upstream.hosts.clone(),
            control: config.control_hosts(),
        },
        limits: config.clients.limits.clone(),
        batching: config.batching,
        certificates: Arc::clone(&equipment.certificates),
        logins: equipment.logins.clone(),
        pool: config.clients.pool.clone(),
        rejections: equipment.rejections.clone(),
        takeover: takeover.clone(),
        fence: fences.subscribe(),
        leaderships: leaderships.clone(),
    }
}

/// What each listener for clients gives to its sessions, in the order of the listeners.
fn grants(
    config: &Config,
    leaderships: &mut Leaderships,
) -> Result<Vec<Option<Arc<Grant>>>, String> {
    let mut grants = vec![None; config.clients.listen.len()];
    for listener in &config.clients.token_listeners {
        let leadership = match leaderships.find(&listener.scope) {
            Some(known) => Arc::clone(known),
            None => {
                let source = elections::source(&listener.source, &config.takeover.authority);
                let source = source.map_err(told("cannot follow the election of a listener"))?;
                leaderships.add(listener.scope.clone(), source, listener.on_loss.clone())
            }
        };
        let grant = Arc::new(Grant {
            leadership,
            without: listener.without,
            pool: listener.pool,
        });
        grants.extend(listener.listen.iter().map(|_| Some(Arc::clone(&grant))));
    }
    Ok(grants)
}

/// The slow part of a start. Cancelling it leaves nothing to undo.
async fn start(
    config: &Config,
    listeners: &[Listener],
    predecessor: &mut Option<Predecessor>,
) -> Result<Takeover, String> {
    if let AuthorityLocation::Embedded(directory) = &config.takeover.authority
        && let Some(mut old) = predecessor.take()
    {
        // Only one process can have the store open.
        store::look(directory).map_err(told(UNOPENED))?;
        old.take_over(listeners).await;
        old.gone().await;
    }
    let authority = store::open(config).await.map_err(told(UNOPENED))?;
    let host = uname().nodename().to_string_lossy().into_owned();
    let declared_by = format!("pgpalisade {host} {}", std::process::id());
    let options = store::takeover_options(config, declared_by);
    let takeover = Takeover::start(options, authority, CancellationToken::new()).await;
    let takeover = takeover.map_err(|error| error.to_string())?;
    log_start(config, &takeover);
    Ok(takeover)
}

fn told<E: Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}

/// Waits for a process that takes over all listeners. Cancel safe.
async fn successor(
    accepting: &Accepting,
    console: Option<&OpenConsole>,
    orders: &Orders,
) -> Successor {
    let all = console.map(|console| &console.listener).into_iter();
    let all: Vec<_> = all.chain(&accepting.listeners).cloned().collect();
    let successor = handover::successor(&orders.upgrade, &all).await;
    service_manager::replaced_by(successor.pid());
    orders.replaced.cancel();
    successor
}

async fn start_http(
    config: Option<HttpAddr>,
    listener: Option<HttpListener>,
    facts: Arc<Facts>,
    closing: CancellationToken,
) -> Option<HttpServer> {
    let listener = match (listener, config) {
        (None, Some(address)) => inherit_http(&address).await,
        (listener, _) => listener,
    };
    let started = HttpServer::start(listener?, facts, closing);
    let failed = |error: &HttpError| tracing::error!(%error, "cannot serve HTTP");
    started.inspect_err(failed).ok()
}

/// Listens for HTTP once the predecessor has released the address.
async fn inherit_http(config: &HttpAddr) -> Option<HttpListener> {
    let (begun, mut is_told) = (Instant::now(), false);
    loop {
        let error = match HttpListener::open(config) {
            Ok(listener) => return Some(listener),
            Err(error) => error,
        };
        let is_taken = matches!(&error, HttpError::Listen { source, .. }
            if source.kind() == io::ErrorKind::AddrInUse);
        if !is_taken || (begun.elapsed() > SETTLE_WITHIN && !is_told) {
            tracing::error!(%error, "cannot serve HTTP");
            is_told = true;
        }
        if !is_taken {
            return None;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

fn log_start(config: &Config, takeover: &Takeover) {
    let primary = takeover.primary();
    let primary = primary.as_ref();
    let policy = config.policy.file.as_deref();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        upstream = %config.upstream.hosts,
        primary = primary.map(|primary| &*primary.server),
        postgres = primary.map(|primary| &*primary.version),
        authority = %config.takeover.authority,
        policy = policy.map(|path| path.display().to_string()),
        mode = match (config.policy.mode, policy) {
            (Mode::Observe, _) => "observe: nothing is refused",
            (Mode::Enforce, None) => "enforce",
            (Mode::Enforce, Some(_)) => "as the policy says",
        },
        "pgpalisade serves"
    );
}
