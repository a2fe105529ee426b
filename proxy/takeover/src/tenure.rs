//! How long a server is the primary: sessions that began under one must not outlive it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pgpalisade_authority::Cluster;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The time in which the control connection's server is the primary. It is over when another one is on record, or
/// when the control connection is made anew and leads to another one.
#[derive(Debug, Clone)]
pub struct Tenure(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cluster: Cluster,
    /// What sessions look at again and again: the token would take a lock.
    is_over: AtomicBool,
    over: CancellationToken,
}

impl Tenure {
    fn new(cluster: Cluster) -> Self {
        Self(Arc::new(Inner {
            cluster,
            is_over: AtomicBool::new(false),
            over: CancellationToken::new(),
        }))
    }

    /// Whether it is over. One atomic load.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_over.load(Ordering::Acquire)
    }

    /// Returns when it is over.
    pub fn over(&self) -> WaitForCancellationFutureOwned {
        self.0.over.clone().cancelled_owned()
    }

    fn end(&self) {
        if !self.0.is_over.swap(true, Ordering::AcqRel) {
            let cluster = self.0.cluster;
            tracing::warn!(%cluster, "this server is no longer the primary: ending its sessions");
            self.0.over.cancel();
        }
    }
}

/// The tenure that was the last to begin.
#[derive(Debug, Default)]
pub(super) struct Tenures(Mutex<Option<Tenure>>);

impl Tenures {
    /// The tenure of a server that is on record: the one that runs, where that is the same server and start of it,
    /// and otherwise another, which ends it.
    pub(super) fn begin(&self, cluster: Cluster) -> Tenure {
        let mut last = self.0.lock();
        match &*last {
            Some(tenure) if tenure.0.cluster == cluster && !tenure.is_over() => tenure.clone(),
            _ => {
                let tenure = Tenure::new(cluster);
                if let Some(before) = last.replace(tenure.clone()) {
                    before.end();
                }
                tenure
            }
        }
    }

    /// Whose it is.
    pub(super) fn cluster(&self) -> Option<Cluster> {
        self.0.lock().as_ref().map(|tenure| tenure.0.cluster)
    }

    /// Takes note of what is on record. The time of a server on an older timeline is over; one that is only said to
    /// have a later start may be a copy, and the sessions of the original go on as long as they live.
    pub(super) fn note(&self, recorded: Cluster) {
        let at = |cluster: Cluster| (cluster.system_identifier, cluster.timeline);
        let is_deposed = |ours: Cluster| at(ours) != at(recorded) && !ours.follows(&recorded);
        let last = self.0.lock().clone();
        if let Some(tenure) = last.filter(|tenure| is_deposed(tenure.0.cluster)) {
            tenure.end();
        }
    }
}
