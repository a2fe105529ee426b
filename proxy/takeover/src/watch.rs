//! The watch: what other proxies do to the marks is known here as soon as the authority tells it, so that sessions
//! with a lower token are refused at once. Speed, not safety: the barrier ends them, watch or no watch.

use std::sync::Arc;

use pgpalisade_authority::{Change, Cluster, Watch};
use tokio_util::sync::CancellationToken;

use super::control::Control;
use pgpalisade_fence::mark_cache::MarkCache;

/// What the watch tells it to.
pub(super) struct Watcher {
    pub(super) control: Control,
    pub(super) cells: Arc<MarkCache>,
    /// The cluster that this proxy was started for.
    pub(super) ours: Cluster,
}

impl Watcher {
    /// Follows the watch until it ends, or until `cancel`.
    pub(super) async fn run(self, mut watch: Watch, cancel: CancellationToken) {
        loop {
            let change = tokio::select! {
                () = cancel.cancelled() => return,
                change = watch.recv() => change,
            };
            match change {
                Some(Change::Mark(scope, mark)) => self.cells.note(&scope, &mark),
                Some(Change::Cluster(recorded)) => self.on_cluster(recorded),
                None => return,
            }
        }
    }

    fn on_cluster(&self, recorded: Cluster) {
        self.cells.cluster().note(self.ours, recorded);
        let current = self.control.cluster();
        if current.is_some_and(|current| current != recorded && recorded.follows(&current)) {
            tracing::warn!(
                %recorded,
                "a newer timeline or start of the cluster is on record; the control connection is made anew"
            );
            self.control.renew();
        }
    }
}
