//! Opens the configured store of marks.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgpalisade_authority::{Authority, Embedded, Etcd, OpenError, Postgres, embedded, postgres};
use pgpalisade_takeover::{StoreLock, TakeoverOptions};

use crate::config::{AuthorityLocation, Config};

/// Time within which another process may release an embedded store.
const RELEASED_WITHIN: Duration = Duration::from_secs(1);

/// Opens the store.
///
/// # Errors
///
/// If it cannot be used, with what to do.
pub(crate) async fn open(config: &Config) -> Result<Arc<dyn Authority>, OpenError> {
    let takeover = &config.takeover;
    Ok(match &takeover.authority {
        AuthorityLocation::Embedded(directory) => Arc::new(open_embedded(directory).await?),
        AuthorityLocation::Etcd(options) => Etcd::open(options.as_ref().clone()).await?,
        AuthorityLocation::Postgres(options) => {
            let options = options.as_ref().clone().with_timeout(takeover.timeout);
            Arc::new(Postgres::connect(&options).await?)
        }
    })
}

/// As [`open`], but creates no store: an empty one at a wrong address looks like one that has forgotten every mark.
///
/// # Errors
///
/// As [`open`], or that there is none.
pub(crate) async fn open_existing(config: &Config) -> Result<Arc<dyn Authority>, OpenError> {
    let (location, timeout) = (&config.takeover.authority, config.takeover.timeout);
    let is_there = match location {
        AuthorityLocation::Embedded(directory) => {
            !matches!(embedded::read(directory)?, embedded::Found::Nothing)
        }
        AuthorityLocation::Etcd(options) => Etcd::find(options.as_ref().clone()).await?.is_some(),
        AuthorityLocation::Postgres(options) => {
            let options = options.as_ref().clone().with_timeout(timeout);
            postgres::read(&options).await?.1.is_some()
        }
    };
    if is_there {
        open(config).await
    } else {
        Err(OpenError::Missing(location.to_string()))
    }
}

/// What takeovers with the configured store go by.
pub(crate) fn takeover_options(config: &Config, declared_by: String) -> TakeoverOptions {
    let store_lock = match config.takeover.authority {
        AuthorityLocation::Embedded(_) => StoreLock::Exclusive,
        AuthorityLocation::Etcd(_) | AuthorityLocation::Postgres(_) => StoreLock::Shared,
    };
    TakeoverOptions {
        store_lock,
        witness: config.takeover.witness,
        timeout: config.takeover.timeout,
        ..TakeoverOptions::new(config.control.expose().clone(), declared_by)
    }
}

/// Checks that an embedded store could be opened and written, except that it may be in use.
pub(crate) fn look(directory: &Path) -> Result<(), OpenError> {
    embedded::try_open(directory)?;
    let found = embedded::read(directory)?;
    match found {
        embedded::Found::Nothing => Ok(()),
        embedded::Found::InUse | embedded::Found::Contents(_) => embedded::has_room(directory),
    }
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
