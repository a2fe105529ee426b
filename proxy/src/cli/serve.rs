//! `pgpalisade serve`: the proxy itself.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_elect::Signals;
use pgpalisade_rejection_log::RejectionLog;
use pgpalisade_server::listener::ListenAddr;
use rustix::process::Signal;

use super::settings::Settings;
use super::text::print;
use super::{Failure, failed, open_files, runtime, wrong_file};
use crate::config::{Config, Environment, RawConfig};
use crate::console::{Orders, Stop};
use crate::handover::Predecessor;
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
    let predecessor = args.successor.then(Predecessor::receive).transpose();
    let equipment = equipment(&config, predecessor.map_err(failed)?)?;
    let begun = (args.settings.0.clone(), written);
    let (hosts, authority) = (&config.upstream.hosts, &config.takeover.authority);
    let places = format!("upstream {hosts}, authority {authority}");
    let announce = |addresses: &[ListenAddr]| announce(addresses, &places);
    let (orders, reloads) = Orders::new();
    let serving = serve::serve(
        config,
        equipment,
        begun,
        (orders.clone(), reloads),
        announce,
    );
    obey(serving, heard, orders).await
}

/// Everything that this machine provides, or the first thing that is missing. Needs a runtime.
fn equipment(config: &Config, mut predecessor: Option<Predecessor>) -> Result<Equipment, Failure> {
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
        listeners: local::listeners(config, predecessor.as_mut()).map_err(failed)?,
        http,
        predecessor,
    })
}

/// Serves, and obeys signals.
async fn obey(
    server: impl Future<Output = Result<(), String>>,
    mut heard: Signals,
    orders: Orders,
) -> Result<(), Failure> {
    let watchdog = service_manager::feed_watchdog();
    let watchdog = orders.replaced.run_until_cancelled(watchdog);
    tokio::pin!(server, watchdog);
    loop {
        tokio::select! {
            result = &mut server => return result.map_err(failed),
            _ = &mut watchdog, if !orders.replaced.is_cancelled() => {}
            signal = heard.next() => match signal {
                Signal::HUP => {
                    // A waiting reload serves this request too.
                    let _ = orders.reload.try_send(None);
                }
                Signal::USR2 => orders.upgrade.notify_one(),
                _ if orders.shutdown.is_cancelled() => {
                    return Err(failed("stopped at once by a second signal"));
                }
                _ => orders.stop(Stop::Now),
            },
        }
    }
}

/// The one line for people and scripts that wait for the proxy, with the ports that the system chose.
fn announce(addresses: &[ListenAddr], places: &str) {
    service_manager::ready();
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let _ = print(&format!(
        "listening on {}, {places}\n",
        addresses.join(", ")
    ));
}
