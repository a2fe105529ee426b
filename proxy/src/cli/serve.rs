//! `pgpalisade serve`: the proxy itself.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_policies::{Mode, Policy};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::settings::Settings;
use super::{Failure, configuration, failed, open_files};
use crate::certificates::Certificates;
use crate::config::Config;
use crate::logging;
use crate::rejection_log::RejectionLog;
use crate::{policy_file, server};

/// Run the proxy
///
/// Every flag is also a key of the TOML file (--config) and an environment variable; a flag wins over the variable, the
/// variable over the file. SIGINT or SIGTERM ends it cleanly, a second one at once; SIGHUP reads the policy file
/// and the files for TLS again and opens the rejection log anew.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    PGUSER=postgres PGPASSWORD=... pgpalisade serve --upstream postgres://db.internal:5432 \\\n      \
    --authority embedded:/var/lib/pgpalisade --rejection-log /var/log/pgpalisade/rejections.jsonl")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    settings: Settings,
}

/// The proxy was told twice to stop.
#[derive(Debug, thiserror::Error)]
#[error("stopped at once by a second signal")]
struct StoppedAtOnce;

/// Serves until a signal or a failure.
pub(super) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = configuration(&args.settings)?;
    let policy = match &config.policy {
        Some(path) => {
            policy_file::read(path).map_err(|errors| Failure::Usage(errors.to_string()))?
        }
        None => Policy::default(),
    };
    let _log = logging::init(&config.log, config.log_format).map_err(failed)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        upstream = %config.upstream,
        authority = %config.authority,
        policy = config.policy.as_deref().map(|path| path.display().to_string()),
        mode = match config.mode {
            Mode::Enforce => "enforce",
            Mode::Observe => "observe: nothing is refused",
        },
        "pgpalisade starts"
    );
    open_files::raise_limit(&config);
    let rejections = RejectionLog::open(config.rejection_log.as_deref(), config.rejection_literals)
        .map_err(failed)?;
    let certificates = Arc::new(Certificates::load(&config).map_err(failed)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let result = runtime.block_on(serve(config, policy, rejections, certificates));
    // Nothing that still runs may hold up the end.
    runtime.shutdown_timeout(Duration::from_millis(100));
    if result.is_ok() {
        tracing::info!("stopped");
    }
    result
}

async fn serve(
    config: Config,
    policy: Policy,
    rejections: RejectionLog,
    certificates: Arc<Certificates>,
) -> Result<(), Failure> {
    let mut signals = Signals::listen().map_err(failed)?;
    let shutdown = CancellationToken::new();
    let (ready, is_ready) = oneshot::channel();
    let places = format!(
        "upstream {}, authority {}",
        config.upstream, config.authority
    );
    let reload = Arc::new(Notify::new());
    let ends = server::Signals {
        shutdown: shutdown.clone(),
        reload: Arc::clone(&reload),
    };
    let log = rejections.clone();
    let server = server::serve(config, policy, ends, log, Arc::clone(&certificates), ready);
    tokio::pin!(server);
    let announce = async {
        if let Ok(addresses) = is_ready.await {
            announce(&addresses, &places);
        }
        std::future::pending::<()>().await;
    };
    tokio::pin!(announce);
    loop {
        tokio::select! {
            result = &mut server => return result.map_err(failed),
            () = &mut announce => {}
            what = signals.next() => match what {
                What::Stop if shutdown.is_cancelled() => return Err(failed(StoppedAtOnce)),
                What::Stop => {
                    tracing::info!("shutting down; a second signal ends it at once");
                    shutdown.cancel();
                }
                What::Reload => {
                    rejections.reopen();
                    certificates.reload();
                    reload.notify_one();
                }
            },
        }
    }
}

/// The one line for people and scripts that wait for the proxy. It names the ports that the system chose.
fn announce(addresses: &[SocketAddr], places: &str) {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut stdout = std::io::stdout().lock();
    // Nobody has to read it.
    let _ = writeln!(stdout, "listening on {}, {places}", addresses.join(", "))
        .and_then(|()| stdout.flush());
}

enum What {
    Stop,
    Reload,
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Cancel safe: `recv` is.
    async fn next(&mut self) -> What {
        tokio::select! {
            _ = self.interrupt.recv() => What::Stop,
            _ = self.terminate.recv() => What::Stop,
            _ = self.hangup.recv() => What::Reload,
        }
    }
}
