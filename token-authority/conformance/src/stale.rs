//! Stale sessions that go on because their refusal is only observed.

use std::collections::BTreeSet;

use pgpalisade_authority::{
    Authority, Declaration, DeclareOutcome, Declared, Drained, IfStale, Mark,
};

use super::{CLUSTER, accepted, backends, declare, fresh_backend, fresh_scope, token};

#[track_caller]
fn mark_above(declared: Declared) -> Mark {
    match declared {
        Declared::Stale { mark } => mark,
        other => panic!("not stale: {other:?}"),
    }
}

/// The next takeover must end a stale session that continues, even if the scope was drained. Generated steps may miss
/// this.
pub(super) async fn sessions_are_registered_where_that_is_wanted(store: &dyn Authority) {
    let s = fresh_scope();
    let (current, old, moved) = (fresh_backend(), fresh_backend(), fresh_backend());
    let observed = |value, backend| Declaration {
        if_stale: IfStale::Register,
        ..Declaration::new(&s, token(value), backend, CLUSTER, "observed")
    };
    declare(store, &s, 5, current).await;
    declare(store, &s, 5, moved).await;
    let drained = store.drained(&s, token(5).into(), &[]).await;
    assert_eq!(drained, Ok(Drained::Complete));
    for (value, backend) in [(3, old), (4, old), (2, old), (4, moved)] {
        let declaration = observed(value, backend);
        let declared = store.declare(&declaration).await;
        let mark = mark_above(declared.expect("declare answers"));
        assert_eq!(mark.token, token(5), "the mark stays");
    }
    let (_, outcome, lower) = accepted(declare(store, &s, 5, current).await);
    assert_eq!(outcome, DeclareOutcome::Current);
    let found: Vec<_> = lower.iter().map(|r| (r.backend, r.token)).collect();
    assert_eq!(found, [(old, token(4))], "never down, and not drained");
    // A refused session is not registered.
    let refused = fresh_backend();
    mark_above(declare(store, &s, 4, refused).await);
    let drained = store.drained(&s, token(5).into(), &[old]).await;
    assert_eq!(drained, Ok(Drained::Complete));
    let (.., lower) = accepted(declare(store, &s, 6, refused).await);
    let both = BTreeSet::from([current, moved]);
    assert_eq!(backends(&lower), both);
}
