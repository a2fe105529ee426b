//! The operator's command for the end of a term, which ends a program that may go on with what it had decided.

use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Term;
use crate::forced_end::Loss;

/// Time that the command has before the term ends without it.
const RUNS_WITHIN: Duration = Duration::from_secs(3);

/// Runs the command, without a shell. Returns once it has ended, or its time is over; it then goes on.
pub(super) async fn run(words: &[String], term: &Term, loss: Loss) {
    let Some((program, arguments)) = words.split_first() else {
        return;
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("FENCING_SCOPE", term.scope.as_str())
        .env("FENCING_TOKEN", term.token.to_string())
        .env("FENCING_LOSS", loss.why())
        .stdin(Stdio::null());
    let (ended, end) = oneshot::channel();
    let waiting = command.spawn().and_then(|mut child| {
        // Tokio's process support would cost time at each pause of a worker.
        let wait = move || ended.send(child.wait());
        std::thread::Builder::new()
            .name("on-loss".to_owned())
            .spawn(wait)
    });
    if let Err(error) = waiting {
        return tracing::error!(%program, %error, "the command of on_loss cannot run");
    }
    match timeout(RUNS_WITHIN, end).await {
        Ok(Ok(Ok(status))) if status.success() => tracing::info!(%program, "on_loss has run"),
        Ok(Ok(Ok(status))) => {
            tracing::error!(%program, %status, "the command of on_loss has failed")
        }
        Ok(_) => tracing::error!(%program, "the end of on_loss is not known"),
        Err(_) => {
            tracing::error!(%program, "the command of on_loss still runs; the term ends without it")
        }
    }
}
