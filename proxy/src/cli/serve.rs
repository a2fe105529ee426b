//! `pgpalisade serve`: the proxy itself.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_elect::Signals;
use pgpalisade_rejection_log::RejectionLog;
use pgpalisade_server::listener::ListenAddr;
use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::settings::Settings;
use super::text::print;
use super::{Failure, failed, open_files, runtime, wrong_file};
use crate::config::{Config, Environment, RawConfig};
use crate::console::{Orders, Stop};
use crate::handover::{Handover, Predecessor};
use crate::http::{HttpError, HttpListener};
use crate::serve::{self, Equipment};
use crate::{local, logging, service_manager};

/// Run the proxy
///
/// Every flag is also a key of the TOML file (--config) and an environment variable; a flag wins over the variable,
/// the variable over the file. SIGINT or SIGTERM ends it cleanly, a second one at once; SIGHUP rereads the policy
/// file, the files for TLS and the users file, and reopens the rejection log; SIGUSR2 starts the installed program,
/// which takes over the listeners, and ends this process cleanly.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    PGUSER=postgres PGPASSWORD=... pgpalisade serve --upstream postgres://db.internal:5432 \\\n      \
    --authority embedded:/var/lib/pgpalisade --rejection-log /var/log/pgpalisade/rejections.jsonl")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    settings: Settings,
    /// Started by the process whose listeners it takes over
    #[arg(long, hide = true)]
    successor: bool,
}

pub(super) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let environment = Environment::of_this_process();
    let written = RawConfig::collect(&args.settings.0, &environment);
    let config = Config::from_raw(written.clone(), &environment)
        .map_err(|errors| Failure::Usage(errors.to_string()))?;
    let _log = logging::init(&config.log).map_err(failed)?;
    open_files::raise_limit(&config);
    let runtime = runtime()?;
    let result = runtime.block_on(serve(args, written, config));
    match result {
        // Tasks that still run must not delay the end.
        Ok(()) => runtime.shutdown_timeout(Duration::from_millis(100)),
        // Workers may still need its timers. They end with the process.
        Err(_) => std::mem::forget(runtime),
    }
    result.inspect(|()| tracing::info!("stopped"))
}

async fn serve(args: &ServeArgs, written: RawConfig, config: Config) -> Result<(), Failure> {
    // Before anything that takes time: by default a signal would end the process.
    let heard = [Signal::INT, Signal::TERM, Signal::HUP, Signal::USR2];
    let heard = Signals::listen(&heard).map_err(failed)?;
    let (mut handover, upgrades, is_replaced) = Handover::new();
    if args.successor {
        handover.predecessor = Some(Predecessor::receive().map_err(failed)?);
    }
    let equipment = equipment(&config, handover.predecessor.as_mut())?;
    let (orders, reloads, stops) = Orders::new();
    let shutdown = CancellationToken::new();
    let closing = shutdown.child_token();
    let signals = serve::Signals {
        shutdown: shutdown.clone(),
        closing: closing.clone(),
        reloads,
        begun: (args.settings.0.clone(), written),
        handover,
        orders: orders.clone(),
    };
    let places = places(&config);
    let (ready, is_ready) = oneshot::channel();
    let serving = serve::serve(config, equipment, signals, ready);
    let announced = async { announce(is_ready.await.ok(), &places) };
    let signalled = Signalled {
        heard,
        shutdown,
        closing,
        orders,
        stops,
        upgrades,
        is_replaced,
    };
    obey(serving, announced, signalled).await
}

/// Everything that this machine provides, or the first thing that is missing. Needs a runtime.
fn equipment(config: &Config, predecessor: Option<&mut Predecessor>) -> Result<Equipment, Failure> {
    let is_successor = predecessor.is_some();
    let policy = local::policy(config).map_err(|errors| Failure::Usage(errors.to_string()))?;
    let rejections = &config.rejections;
    let rejections = RejectionLog::open(rejections.file.as_deref(), rejections.literals);
    let http = match config.http.as_ref().map(HttpListener::open).transpose() {
        // The predecessor holds the address until it learns that this process serves.
        Err(HttpError::Listen { source, .. })
            if is_successor && source.kind() == io::ErrorKind::AddrInUse =>
        {
            None
        }
        http => http.map_err(failed)?,
    };
    Ok(Equipment {
        policy,
        rejections: rejections.map_err(failed)?,
        certificates: Arc::new(local::certificates(config).map_err(wrong_file)?),
        logins: local::logins(config).map_err(wrong_file)?,
        users: local::console_users(config).map_err(wrong_file)?,
        listeners: local::listeners(config, predecessor).map_err(failed)?,
        http,
    })
}

fn places(config: &Config) -> String {
    let (hosts, authority) = (&config.upstream.hosts, &config.takeover.authority);
    format!("upstream {hosts}, authority {authority}")
}

/// Effects of signals and the console.
struct Signalled {
    heard: Signals,
    shutdown: CancellationToken,
    closing: CancellationToken,
    orders: Orders,
    stops: mpsc::Receiver<Stop>,
    upgrades: mpsc::Sender<()>,
    is_replaced: oneshot::Receiver<u32>,
}

/// Serves, and obeys signals and the console.
async fn obey(
    server: impl Future<Output = Result<(), String>>,
    announced: impl Future<Output = ()>,
    mut signalled: Signalled,
) -> Result<(), Failure> {
    let shutdown = signalled.shutdown;
    let mut replaced = false;
    let stop = |replaced: bool| {
        tracing::info!("shutting down; a second signal ends it at once");
        if !replaced {
            service_manager::stopping();
        }
        shutdown.cancel();
    };
    let watchdog = service_manager::feed_watchdog();
    let announced = async {
        announced.await;
        std::future::pending::<()>().await;
    };
    tokio::pin!(server, announced, watchdog);
    loop {
        tokio::select! {
            result = &mut server => return result.map_err(failed),
            () = &mut announced => {}
            () = &mut watchdog, if !replaced => {}
            Ok(pid) = &mut signalled.is_replaced, if !replaced => {
                replaced = true;
                service_manager::replaced_by(pid);
            }
            Some(order) = signalled.stops.recv() => match order {
                Stop::Now => stop(replaced),
                Stop::WhenClientsHaveLeft => {
                    tracing::info!("no more clients are accepted; the proxy ends when the last one has left");
                    signalled.closing.cancel();
                }
            },
            signal = signalled.heard.next() => match signal {
                Signal::HUP => {
                    // A waiting reload serves this request too.
                    let _ = signalled.orders.reload.try_send(None);
                }
                Signal::USR2 => {
                    // A running or finished upgrade serves this request too.
                    let _ = signalled.upgrades.try_send(());
                }
                _ if shutdown.is_cancelled() => return Err(failed("stopped at once by a second signal")),
                _ => stop(replaced),
            },
        }
    }
}

/// The one line for people and scripts that wait for the proxy, with the ports that the system chose.
fn announce(addresses: Option<Vec<ListenAddr>>, places: &str) {
    let Some(addresses) = addresses else { return };
    service_manager::ready();
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let _ = print(&format!(
        "listening on {}, {places}\n",
        addresses.join(", ")
    ));
}
