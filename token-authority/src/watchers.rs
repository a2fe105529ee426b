//! Those who hear what changes in a store, whichever store it is.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::timeout;

use crate::{Change, Watch};

/// Changes that a watcher may be behind.
const QUEUE: usize = 1024;
/// How long one that is behind by so many may hold up the others, before changes are left out for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The watchers of a handle.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<Vec<mpsc::Sender<Change>>>);

impl Watchers {
    /// Takes in one more.
    pub(crate) fn watch(&self) -> Watch {
        let (sender, watch) = mpsc::channel(QUEUE);
        self.0.lock().push(sender);
        watch
    }

    /// Tells all of them without waiting; those that are gone are forgotten.
    pub(crate) fn tell_at_once(&self, change: &Change) {
        let told = |watcher: &mpsc::Sender<Change>| {
            let sent = watcher.try_send(change.clone());
            !matches!(sent, Err(TrySendError::Closed(_)))
        };
        self.0.lock().retain(told);
    }

    /// Tells all of them, and waits for those that are behind; those that are gone are forgotten.
    pub(crate) async fn tell(&self, changes: &[Change]) {
        let watchers = self.0.lock().clone();
        for watcher in &watchers {
            let all = async {
                for change in changes {
                    if watcher.send(change.clone()).await.is_err() {
                        break;
                    }
                }
            };
            if timeout(PATIENCE, all).await.is_err() {
                tracing::debug!("authority: a watcher does not read and misses changes");
            }
        }
        self.0.lock().retain(|watcher| !watcher.is_closed());
    }
}
