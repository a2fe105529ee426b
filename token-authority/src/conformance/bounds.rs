//! Limits on how far a declaration may raise a mark.

use super::{CLUSTER, accepted, declare, fresh_backend, fresh_scope, mark_of, sessions_of, token};
use crate::{Authority, Backend, Declaration, DeclareOutcome, Declared, Scope, Token};

async fn declare_within(
    store: &dyn Authority,
    scope: &Scope,
    value: u64,
    most: u64,
    backend: Backend,
) -> Declared {
    let declaration = Declaration {
        max_step: Some(most),
        ..Declaration::new(scope, token(value), backend, CLUSTER, "suite")
    };
    store.declare(&declaration).await.expect("declare answers")
}

pub(super) async fn a_step_that_is_too_long_changes_nothing(store: &dyn Authority) {
    let (s, a, b) = (fresh_scope(), fresh_backend(), fresh_backend());
    // A scope without a mark accepts any token: no step can be counted.
    let (first, outcome, _) = accepted(declare_within(store, &s, 1000, 10, a).await);
    assert_eq!(outcome, DeclareOutcome::Raised);
    for value in [1011, Token::MAX] {
        let refused = declare_within(store, &s, value, 10, b).await;
        let mark = first.clone();
        assert_eq!(refused, Declared::TooFar { mark });
        assert_eq!(mark_of(store, &s).await, Some(first.clone()));
        let registered = sessions_of(store, &s).await;
        assert_eq!(registered.len(), 1, "{registered:?}");
    }
    let (.., lower) = accepted(declare_within(store, &s, 1010, 10, b).await);
    assert_eq!(lower.len(), 1, "as far as it may");
    assert!(matches!(
        declare_within(store, &s, 1000, 10, a).await,
        Declared::Stale { .. }
    ));
    let (_, outcome, _) = accepted(declare_within(store, &s, 1010, 0, a).await);
    assert_eq!(
        outcome,
        DeclareOutcome::Current,
        "an equal token is no step"
    );
    accepted(declare_within(store, &s, Token::MAX, u64::MAX, a).await);
    let free = fresh_scope();
    declare(store, &free, 1, a).await;
    accepted(declare(store, &free, Token::MAX, a).await);
}
