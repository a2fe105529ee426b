//! Opens the configured store of marks.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgpalisade_authority::{Authority, Embedded, Etcd, OpenError, Postgres, embedded};
use pgpalisade_takeover::StoreLock;

use crate::config::AuthorityLocation;

pub(crate) struct OpenStore {
    pub authority: Arc<dyn Authority>,
    pub lock: StoreLock,
}

/// Time within which another process may release an embedded store.
const RELEASED_WITHIN: Duration = Duration::from_secs(1);

/// Opens the store. `timeout` bounds a call to one over a network.
///
/// # Errors
///
/// If it cannot be used, with what to do.
pub(crate) async fn open(
    location: &AuthorityLocation,
    timeout: Duration,
) -> Result<OpenStore, OpenError> {
    Ok(match location {
        AuthorityLocation::Embedded(directory) => OpenStore {
            authority: Arc::new(open_embedded(directory).await?),
            lock: StoreLock::Exclusive,
        },
        AuthorityLocation::Etcd(options) => OpenStore {
            authority: Etcd::open(options.as_ref().clone()).await?,
            lock: StoreLock::Shared,
        },
        AuthorityLocation::Postgres(options) => {
            let options = options.as_ref().clone().with_timeout(timeout);
            OpenStore {
                authority: Arc::new(Postgres::connect(&options).await?),
                lock: StoreLock::Shared,
            }
        }
    })
}

/// Checks that an embedded store could be opened, except that it may be in use.
pub(crate) fn look(directory: &Path) -> Result<(), OpenError> {
    embedded::try_open(directory)?;
    embedded::read(directory).map(drop)
}

/// Retries, because another process may have it open for a moment to read it, or to end.
async fn open_embedded(directory: &Path) -> Result<Embedded, OpenError> {
    let begun = Instant::now();
    loop {
        match Embedded::open(directory) {
            Err(OpenError::InUse(_)) if begun.elapsed() < RELEASED_WITHIN => {
                tokio::time::sleep(RELEASED_WITHIN / 50).await;
            }
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_that_is_let_go_of_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let other = Embedded::open(&path).unwrap();
        let refused = open_embedded(&path).await.unwrap_err();
        assert!(matches!(refused, OpenError::InUse(_)));
        let lets_go = async {
            tokio::time::sleep(RELEASED_WITHIN / 10).await;
            drop(other);
        };
        let (opened, ()) = tokio::join!(open_embedded(&path), lets_go);
        opened.unwrap();
    }
}
