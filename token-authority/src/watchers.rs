//! Watchers of changes in a store, for every kind of store.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::timeout;

use crate::{Change, Watch};

/// Changes queued for a watcher.
const QUEUE: usize = 1024;
/// How long a watcher with a full queue may delay the others before it misses changes.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<Vec<mpsc::Sender<Change>>>);

impl Watchers {
    pub(crate) fn watch(&self) -> Watch {
        let (sender, watch) = mpsc::channel(QUEUE);
        self.0.lock().push(sender);
        watch
    }

    /// Tells all watchers without waiting, and forgets closed ones.
    pub(crate) fn tell_at_once(&self, change: &Change) {
        let told = |watcher: &mpsc::Sender<Change>| {
            let sent = watcher.try_send(change.clone());
            !matches!(sent, Err(TrySendError::Closed(_)))
        };
        self.0.lock().retain(told);
    }

    /// Tells all watchers, waits for slow ones, and forgets closed ones.
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
