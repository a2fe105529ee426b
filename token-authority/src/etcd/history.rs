//! Checks that the store still has its known history: a store that has forgotten must never accept again.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use etcd_client::ResponseHeader;

use crate::{Answer, AuthorityError};

#[derive(Debug, Default)]
pub(super) struct History {
    /// 0 before the first answer.
    cluster_id: AtomicU64,
    /// The highest revision seen.
    highest: AtomicI64,
    /// Why nothing is accepted any more. Kept while this process runs.
    broken: OnceLock<AuthorityError>,
}

impl History {
    pub(super) fn intact(&self) -> Answer<()> {
        self.broken.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Lowest revision for the answer to a request through etcd's log, to be read before the request is sent: the
    /// answer is not older than what was known then.
    pub(super) fn floor(&self) -> i64 {
        self.highest.load(Ordering::SeqCst)
    }

    /// Checks the header of an answer, and returns its revision, which must not be below `floor`: 0 if the answer may
    /// be from a member that lags.
    pub(super) fn check(&self, header: Option<&ResponseHeader>, floor: i64) -> Answer<i64> {
        let Some(header) = header else {
            return Err(AuthorityError::Damaged("an answer without a header".into()));
        };
        let (id, revision) = (header.cluster_id(), header.revision());
        let before = self
            .cluster_id
            .compare_exchange(0, id, Ordering::SeqCst, Ordering::SeqCst);
        if let Err(known) = before
            && known != id
        {
            return Err(self.went_back(format!(
                "another etcd cluster answers ({id:x}, it was {known:x})"
            )));
        }
        if revision < floor {
            return Err(self.went_back(format!(
                "its revision is {revision}, but was {floor} before"
            )));
        }
        self.highest.fetch_max(revision, Ordering::SeqCst);
        self.intact()?;
        Ok(revision)
    }

    /// Refuses everything from now on.
    pub(super) fn went_back(&self, what: String) -> AuthorityError {
        self.breaks(AuthorityError::WentBack(format!(
            "{what}: etcd was wiped, or restored from a snapshot; stop all proxies, run: \
             pgpalisade recover, and start them again"
        )))
    }

    pub(super) fn breaks(&self, error: AuthorityError) -> AuthorityError {
        self.broken
            .get_or_init(|| {
                tracing::error!(%error, "etcd: no declaration is accepted until a restart");
                error
            })
            .clone()
    }
}
