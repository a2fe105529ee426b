//! The watch: every raise becomes known, though not every intermediate one.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;

use pgpalisade_authority::{Authority, Change, Incarnation, Rank, Token};

use super::repairs::{repair_of, request};
use super::{CLUSTER, declare, fresh_backend, fresh_scope, token};

/// Far more than a healthy store needs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Raises through `store` are reported through `watched`.
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
            // Earlier changes may still come, and come twice.
            Change::Cluster(cluster) => {
                assert_eq!(cluster.system_identifier, CLUSTER.system_identifier);
            }
        }
    }
}

/// A repair through `store` is reported through `watched`, although its token is lower, and so is a later raise.
pub(super) async fn repairs_are_told(store: &dyn Authority, watched: &dyn Authority) {
    let mut watch = watched.watch();
    let s = fresh_scope();
    declare(store, &s, Token::MAX, fresh_backend()).await;
    let repair = repair_of(Token::MAX, 34);
    let asked = request(&s, token(Token::MAX).into(), &repair);
    store.repair(&asked).await.expect("repair answers");
    let repaired = Rank {
        incarnation: Incarnation::new(1),
        token: token(34),
    };
    let mut seen = None;
    while seen < Some(repaired) {
        let change = timeout(PATIENCE, watch.recv())
            .await
            .unwrap_or_else(|_| panic!("{seen:?} of {s} was told last"));
        if let Change::Mark(scope, mark) = change.expect("the store is open")
            && scope == s
        {
            assert!(seen <= Some(mark.rank()), "told ranks do not fall");
            seen = Some(mark.rank());
            if mark.rank() == repaired {
                assert_eq!(mark.repair.as_deref(), Some(&repair));
            }
        }
    }
}
