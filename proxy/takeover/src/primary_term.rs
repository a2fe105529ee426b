//! Terms of primaries: sessions that began under one must not outlive it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pgpalisade_authority::Cluster;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The time in which the control connection's server is the primary. It is over when another server is on record, or
/// when a new control connection leads to another one.
#[derive(Debug, Clone)]
pub struct PrimaryTerm(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cluster: Cluster,
    /// Sessions read this again and again; the cancellation token would take a lock.
    is_over: AtomicBool,
    over: CancellationToken,
}

impl PrimaryTerm {
    /// Whether the term is over. One atomic load.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_over.load(Ordering::Acquire)
    }

    /// Completes when the term is over.
    pub fn over(&self) -> WaitForCancellationFutureOwned {
        self.0.over.clone().cancelled_owned()
    }

    fn end(&self) {
        if !self.0.is_over.swap(true, Ordering::AcqRel) {
            let cluster = self.0.cluster;
            let why = "this server is no longer the primary, or was restarted: ending its earlier sessions";
            tracing::warn!(%cluster, "{why}");
            self.0.over.cancel();
        }
    }
}

/// The term that was the last to begin.
#[derive(Debug, Default)]
pub(super) struct PrimaryTerms(Mutex<Option<PrimaryTerm>>);

impl PrimaryTerms {
    /// The term of a server on record. The same server, with the same start, continues its term. Another server
    /// begins a new one, which ends the last.
    pub(super) fn begin(&self, cluster: Cluster) -> PrimaryTerm {
        let mut last = self.0.lock();
        match &*last {
            Some(term) if term.0.cluster == cluster && !term.is_over() => term.clone(),
            _ => {
                let term = PrimaryTerm(Arc::new(Inner {
                    cluster,
                    is_over: AtomicBool::new(false),
                    over: CancellationToken::new(),
                }));
                if let Some(before) = last.replace(term.clone()) {
                    before.end();
                }
                term
            }
        }
    }

    /// Cluster of the last term.
    pub(super) fn cluster(&self) -> Option<Cluster> {
        self.0.lock().as_ref().map(|term| term.0.cluster)
    }

    /// Notes the cluster on record. The term of a server on an older timeline is over. One with only a later start
    /// may be a copy, so sessions of the original go on as long as they live.
    pub(super) fn note(&self, recorded: Cluster) {
        let at = |cluster: Cluster| (cluster.system_identifier, cluster.timeline);
        let is_deposed = |ours: Cluster| at(ours) != at(recorded) && !ours.follows(&recorded);
        let last = self.0.lock().clone();
        if let Some(term) = last.filter(|term| is_deposed(term.0.cluster)) {
            term.end();
        }
    }
}
