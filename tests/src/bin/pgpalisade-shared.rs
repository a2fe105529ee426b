//! `pgpalisade serve` with the shared store of the tests in the place of its own: the same server otherwise.
//!
//! It takes the same flags. `TESTS_SHARED_STORE` names the socket of a `pgpalisade_tests::shared_store::Hub`.

#![expect(
    clippy::expect_used,
    reason = "a helper of tests that cannot go on fails them"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use pgpalisade::config::{Config, Environment, Flags, KEYS, RawConfig};
use pgpalisade::logging;
use pgpalisade::rejection_log::RejectionLog;
use pgpalisade::server;
use pgpalisade::takeover::StoreLock;
use pgpalisade_tests::shared_store::SharedStore;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let environment = Environment::of_this_process();
    let raw = RawConfig::collect(&flags(), &environment);
    let config = Config::from_raw(raw, &environment).expect("a valid configuration");
    logging::init(&config.log, config.log_format).expect("logs");
    let rejections = RejectionLog::open(config.rejection_log.as_deref(), config.rejection_literals)
        .expect("the rejection log");
    let socket = PathBuf::from(std::env::var_os("TESTS_SHARED_STORE").expect("TESTS_SHARED_STORE"));
    // Neither a store nor a server that is away is a bug: it ends, as the real one does.
    let store = match SharedStore::try_open(&socket) {
        Ok(store) => Arc::new(store),
        Err(error) => {
            eprintln!("the store does not answer: {error}");
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM");
        let stop = shutdown.clone();
        tokio::spawn(async move {
            let Ok(addresses) = is_ready.await else {
                return;
            };
            println!("listening on {addresses:?}");
            terminate.recv().await;
            stop.cancel();
        });
        let served = server::serve_with(
            config,
            store,
            StoreLock::Shared,
            shutdown,
            rejections,
            ready,
        )
        .await;
        match served {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        }
    })
}

/// `--flag value` pairs by the configuration's own table of keys.
fn flags() -> Flags {
    let mut flags = Flags::default();
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "serve");
    while let Some(flag) = arguments.next() {
        let value = arguments.next().expect("a flag has a value");
        let known = KEYS
            .iter()
            .find(|(_, spec)| flag.strip_prefix("--") == Some(spec.flag));
        let (key, _) = known.expect("a known flag");
        flags.values.push((*key, vec![value]));
    }
    flags
}
