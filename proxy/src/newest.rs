//! Connections that hold no place: at the limit, a new one replaces the oldest.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use tokio::task::AbortHandle;

/// Pause of the listener after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves each accepted connection in a task, at most so many at a time. `what` they are, for the log.
pub(crate) async fn accept_newest<T, A, S>(
    what: &str,
    most: usize,
    accept: impl Fn() -> A,
    serve: impl Fn(T) -> S,
) where
    A: Future<Output = io::Result<T>>,
    S: Future<Output = ()> + Send + 'static,
{
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match accept().await {
            Ok(accepted) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= most
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                open.push_back(tokio::spawn(serve(accepted)).abort_handle());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection {what}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
