//! Signals that end a run in order, so that no server is left behind.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Cancels `stop` on Ctrl-C and SIGTERM, instead of ending the process.
///
/// # Errors
/// Where the signals cannot be waited for.
pub fn watch(stop: CancellationToken) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let guard = runtime.enter();
    let interrupt = signal(SignalKind::interrupt());
    let terminate = signal(SignalKind::terminate());
    drop(guard);
    let mut interrupt = interrupt?;
    let mut terminate = terminate?;
    // Ends with the process.
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        stop.cancel();
    });
    Ok(())
}
