//! How takeovers went: the authority keeps it for people, and nobody waits for that.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{Authority, Scope, TakeoverRecord};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::in_time;

/// Records that may wait. What does not fit is left out.
const LIMIT: usize = 1024;
/// How often it is tried to hand one on, so that it does not hold up the others for ever.
const ATTEMPTS: u32 = 60;
/// Between attempts when the authority does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Where records are handed in.
#[derive(Debug, Clone)]
pub(super) struct Notes(Sender<(Scope, TakeoverRecord)>);

/// Records that are not yet with the authority.
pub(super) struct Noted {
    waiting: Receiver<(Scope, TakeoverRecord)>,
    authority: Arc<dyn Authority>,
    timeout: Duration,
}

impl Notes {
    pub(super) fn to(authority: &Arc<dyn Authority>, timeout: Duration) -> (Self, Noted) {
        let (sender, waiting) = mpsc::channel(LIMIT);
        let noted = Noted {
            waiting,
            authority: Arc::clone(authority),
            timeout,
        };
        (Self(sender), noted)
    }

    /// The same, and hands them on until `cancel`.
    pub(super) fn start(
        authority: &Arc<dyn Authority>,
        timeout: Duration,
        cancel: CancellationToken,
    ) -> Self {
        let (notes, noted) = Self::to(authority, timeout);
        tokio::spawn(noted.run(cancel));
        notes
    }

    /// Does not wait.
    pub(super) fn push(&self, scope: &Scope, record: TakeoverRecord) {
        if self.0.try_send((scope.clone(), record)).is_err() {
            tracing::debug!(%scope, "too many takeovers wait to be noted; this one is not");
        }
    }
}

impl Noted {
    /// Hands them on, until `cancel`.
    async fn run(mut self, cancel: CancellationToken) {
        let hand_on = async {
            while let Some((scope, record)) = self.waiting.recv().await {
                for _ in 0..ATTEMPTS {
                    if self.hand_on(&scope, &record).await {
                        break;
                    }
                    sleep(RETRY).await;
                }
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = hand_on => {}
        }
    }

    /// Hands on what waits now, each once.
    pub(super) async fn flush(mut self) {
        while let Ok((scope, record)) = self.waiting.try_recv() {
            self.hand_on(&scope, &record).await;
        }
    }

    async fn hand_on(&self, scope: &Scope, record: &TakeoverRecord) -> bool {
        let noted = self.authority.note_takeover(scope, record);
        match in_time(noted, Instant::now() + self.timeout).await {
            Ok(()) => true,
            Err(error) => {
                // That the authority is lost is told elsewhere.
                tracing::debug!(%scope, %error, "a takeover is not noted yet");
                false
            }
        }
    }
}
