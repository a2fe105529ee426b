//! Opening the store of marks that the configuration names.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{Authority, Embedded, Etcd, Postgres, embedded, etcd, postgres};

use crate::config::AuthorityLocation;
use crate::takeover::StoreLock;

/// Why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The file.
    #[error(transparent)]
    Embedded(#[from] embedded::OpenError),
    /// The etcd cluster.
    #[error(transparent)]
    Etcd(#[from] etcd::OpenError),
    /// The database.
    #[error(transparent)]
    Postgres(#[from] postgres::OpenError),
}

impl StoreError {
    /// Whether another process has it open: an embedded store, and its proxy runs.
    #[must_use]
    pub(crate) const fn is_in_use(&self) -> bool {
        matches!(self, Self::Embedded(embedded::OpenError::Locked { .. }))
    }
}

/// An open store.
pub(crate) struct Store {
    /// The store.
    pub authority: Arc<dyn Authority>,
    /// Whether it serves one proxy or several.
    pub lock: StoreLock,
}

/// Opens it. `timeout` bounds a call to a store that is reached over a network.
///
/// # Errors
///
/// Whatever keeps it from being used, with what to do.
pub(crate) async fn open(
    location: &AuthorityLocation,
    timeout: Duration,
) -> Result<Store, StoreError> {
    Ok(match location {
        AuthorityLocation::Embedded(directory) => Store {
            authority: Arc::new(Embedded::open(directory)?),
            lock: StoreLock::Exclusive,
        },
        AuthorityLocation::Etcd(options) => Store {
            authority: Arc::new(Etcd::connect(options.as_ref().clone()).await?),
            lock: StoreLock::Shared,
        },
        AuthorityLocation::Postgres(options) => {
            let options = options.as_ref().clone().with_timeout(timeout);
            Store {
                authority: Arc::new(Postgres::connect(&options).await?),
                lock: StoreLock::Shared,
            }
        }
    })
}
