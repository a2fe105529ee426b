//! The watch: every raise becomes known, though not necessarily every step of it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;

use super::{CLUSTER, declare, fresh_backend, fresh_scope, token};
use crate::{Authority, Change, Token};

/// Far more than a healthy store needs.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is raised through `store` is told through `watched`.
pub(super) async fn changes_are_told(store: &dyn Authority, watched: &dyn Authority) {
    let mut watch = watched.watch();
    let scopes = [fresh_scope(), fresh_scope()];
    for value in 1..=20 {
        for scope in &scopes {
            declare(store, scope, value, fresh_backend()).await;
        }
    }
    let mut seen: BTreeMap<_, Token> = BTreeMap::new();
    while !scopes.iter().all(|s| seen.get(s) == Some(&token(20))) {
        let change = timeout(PATIENCE, watch.recv())
            .await
            .unwrap_or_else(|_| panic!("only {seen:?} of {scopes:?} was told"));
        match change.expect("the store is open") {
            Change::Mark(scope, mark) => {
                let before = seen.insert(scope, mark.token);
                assert!(before <= Some(mark.token), "told marks do not fall");
            }
            // What was before may still come, and twice.
            Change::Cluster(cluster) => {
                assert_eq!(cluster.system_identifier, CLUSTER.system_identifier);
            }
        }
    }
}
