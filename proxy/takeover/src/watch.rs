//! The watch: this proxy learns what others do to the marks as soon as the authority reports it. It then refuses
//! sessions with a lower token at once. That brings speed, not safety: the barrier ends them in any case.

use std::sync::Arc;

use pgpalisade_authority::{Change, Cluster, Mark, Scope, Token, Watch};

use super::control::Control;
use pgpalisade_fence::mark_cache::MarkCache;

/// Applies the changes that the watch reports.
pub(super) struct Watcher {
    pub(super) control: Control,
    pub(super) marks: Arc<MarkCache>,
    /// The cluster for which this proxy was started.
    pub(super) ours: Cluster,
    /// Name of this proxy in its declarations.
    pub(super) declared_by: String,
}

impl Watcher {
    /// Follows the watch until it ends.
    pub(super) async fn run(self, mut watch: Watch) {
        while let Some(change) = watch.recv().await {
            match change {
                Change::Mark(scope, mark) => self.on_mark(&scope, &mark),
                Change::Cluster(recorded) => self.on_cluster(recorded),
            }
        }
    }

    fn on_mark(&self, scope: &Scope, mark: &Mark) {
        let from = self.marks.find(scope).and_then(|cached| cached.mark());
        self.marks.note(scope, mark);
        let is_known = from.is_some_and(|from| from >= mark.token);
        // This proxy has already logged its own raises.
        if !is_known && !scope.is_epoch() && !mark.raised_by.ends_with(&self.declared_by) {
            let (from, to) = (from.map(Token::get), mark.token.get());
            let raised_by = &mark.raised_by;
            tracing::info!(%scope, from, to, raised_by, "the mark was raised through another proxy");
        }
    }

    fn on_cluster(&self, recorded: Cluster) {
        self.marks.cluster().note(self.ours, recorded);
        self.control.note_record(recorded);
        let current = self.control.cluster();
        if current.is_some_and(|current| current != recorded && recorded.follows(&current)) {
            tracing::warn!(
                %recorded,
                "a newer timeline or start of the cluster is on record; reconnecting"
            );
            self.control.renew();
        }
    }
}
