//! Takes: the token after the mark, for locks without a number.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use super::{
    CLUSTER, accepted, backends, declare, fresh_backend, fresh_scope, mark_of, sessions_of, stale,
    token,
};
use crate::{
    Authority, Backend, Claim, Declaration, DeclareOutcome, Declared, Drained, IfStale, Scope,
    TakeId,
};

fn take(scope: &Scope, claim: Claim, backend: Backend, number: u64) -> Declaration {
    Declaration {
        take: Some(TakeId::new(backend, number)),
        ..Declaration::new(scope, claim, backend, CLUSTER, "taker")
    }
}

/// 0 means a scope without a mark.
fn after(mark: u64) -> Claim {
    Claim::After((mark > 0).then(|| token(mark)))
}

async fn answer(store: &dyn Authority, declaration: &Declaration) -> Declared {
    store.declare(declaration).await.expect("declare answers")
}

#[track_caller]
fn taken(declared: Declared) -> (u64, DeclareOutcome) {
    let (mark, outcome, _) = accepted(declared);
    (mark.token.get(), outcome)
}

/// Of two takes that name the same mark, one raises it and the other is refused.
pub(super) async fn follow_the_mark_that_was_read(store: &dyn Authority) {
    let (s, a, b) = (fresh_scope(), fresh_backend(), fresh_backend());
    let unread = answer(store, &take(&s, after(7), a, 0)).await;
    assert_eq!(unread, Declared::MarkIsLower { mark: None });
    assert_eq!(mark_of(store, &s).await, None);
    let first = answer(store, &take(&s, after(0), a, 0)).await;
    assert_eq!(taken(first), (1, DeclareOutcome::Raised));
    stale(answer(store, &take(&s, after(0), b, 0)).await);
    let (mark, outcome, lower) = accepted(answer(store, &take(&s, after(1), b, 0)).await);
    assert_eq!((mark.token, outcome), (token(2), DeclareOutcome::Raised));
    assert_eq!(mark.raised_by, "taker");
    assert_eq!(backends(&lower), BTreeSet::from([a]), "a takeover like any");
    let slept = fresh_backend();
    for late in [0, 1] {
        let refused = take(&s, after(late), slept, 0);
        assert_eq!(stale(answer(store, &refused).await), mark);
        let observed = Declaration {
            if_stale: IfStale::Register,
            ..refused
        };
        assert_eq!(stale(answer(store, &observed).await), mark);
    }
    let ahead = answer(store, &take(&s, after(3), slept, 0)).await;
    assert_eq!(ahead, Declared::MarkIsLower { mark: Some(mark) });
    let registered = backends(&sessions_of(store, &s).await);
    assert_eq!(
        registered,
        BTreeSet::from([a, b]),
        "who is refused stays away"
    );
}

pub(super) async fn whatever_the_mark_is(store: &dyn Authority) {
    let (s, a, b) = (fresh_scope(), fresh_backend(), fresh_backend());
    for (at, backend) in [(1, a), (2, b), (3, a)] {
        let next = answer(store, &take(&s, Claim::Next, backend, at)).await;
        assert_eq!(taken(next), (at, DeclareOutcome::Raised));
    }
    declare(store, &s, 10, a).await;
    let (mark, _, lower) = accepted(answer(store, &take(&s, Claim::Next, a, 4)).await);
    assert_eq!(mark.token, token(11));
    assert_eq!(backends(&lower), BTreeSet::from([b]));
    let drained = store.drained(&s, mark.rank(), &[b]).await;
    assert_eq!(drained, Ok(Drained::Complete));
    stale(declare(store, &s, 10, b).await);
}

/// A take is limited like a declared token.
pub(super) async fn stay_within_their_bounds(store: &dyn Authority) {
    let (s, a) = (fresh_scope(), fresh_backend());
    declare(store, &s, 10, a).await;
    let mark = mark_of(store, &s).await.expect("a mark");
    for claim in [Claim::Next, after(10)] {
        for (max_step, max_token) in [(Some(0), None), (None, Some(10)), (Some(5), Some(3))] {
            let bounded = Declaration {
                max_step,
                max_token,
                ..take(&s, claim, a, 0)
            };
            let refused = answer(store, &bounded).await;
            let mark = mark.clone();
            assert_eq!(refused, Declared::TooFar { mark });
        }
    }
    let bounded = Declaration {
        max_step: Some(1),
        max_token: Some(11),
        ..take(&s, after(10), a, 0)
    };
    assert_eq!(
        taken(answer(store, &bounded).await),
        (11, DeclareOutcome::Raised)
    );
    declare(store, &s, crate::Token::MAX, a).await;
    let mark = mark_of(store, &s).await.expect("a mark");
    let full = answer(store, &take(&s, Claim::Next, a, 1)).await;
    assert_eq!(full, Declared::TooFar { mark });
}

/// A take whose answer was lost is repeated: it is recognized, and no other take is.
pub(super) async fn made_again_are_the_same(store: &dyn Authority) {
    let (s, a, b) = (fresh_scope(), fresh_backend(), fresh_backend());
    for (at, claim) in [(1, after(0)), (2, after(1)), (3, Claim::Next)] {
        let made = take(&s, claim, a, at);
        assert_eq!(
            taken(answer(store, &made).await),
            (at, DeclareOutcome::Raised)
        );
        let again = answer(store, &made).await;
        assert_eq!(taken(again), (at, DeclareOutcome::Current));
        assert_eq!(
            mark_of(store, &s).await.map(|mark| mark.token),
            Some(token(at))
        );
    }
    // Another take of the same session, and one of another session: the earlier take keeps the token.
    stale(answer(store, &take(&s, after(2), a, 4)).await);
    stale(answer(store, &take(&s, after(2), b, 3)).await);
    let anonymous = Declaration::new(&s, after(2), a, CLUSTER, "taker");
    stale(answer(store, &anonymous).await);
    // It names its own token as the mark, so it is the next take.
    let next = answer(store, &take(&s, after(3), a, 3)).await;
    assert_eq!(taken(next), (4, DeclareOutcome::Raised));
    // Another session overtakes it.
    let made = take(&s, Claim::Next, a, 5);
    assert_eq!(taken(answer(store, &made).await).0, 5);
    let joined = take(&s, after(4), a, 5);
    assert_eq!(
        taken(answer(store, &joined).await),
        (5, DeclareOutcome::Current)
    );
    declare(store, &s, 6, b).await;
    stale(answer(store, &take(&s, after(4), a, 5)).await);
    // A declared number has raised the mark since, which no take did.
    assert_eq!(
        taken(answer(store, &made).await),
        (7, DeclareOutcome::Raised)
    );
}

/// All takes name the same mark. In every round one of them gets the token after it.
pub(super) async fn at_once_have_one_winner(handles: &[Arc<dyn Authority>], seed: u64) {
    let s = fresh_scope();
    for mark in 0..6_u64 {
        let mut tasks = JoinSet::new();
        for (task, store) in (0..24_u64).zip(handles.iter().cycle()) {
            let (store, s) = (Arc::clone(store), s.clone());
            let mut rng = StdRng::seed_from_u64(seed ^ (mark << 16) ^ task);
            tasks.spawn(async move {
                let made = take(&s, after(mark), fresh_backend(), 0);
                if rng.random_ratio(1, 2) {
                    // The caller abandons the take and repeats it.
                    let wait = Duration::from_micros(rng.random_range(0..3000));
                    let _ = tokio::time::timeout(wait, store.declare(&made)).await;
                }
                answer(store.as_ref(), &made).await
            });
        }
        let answers = tasks.join_all().await;
        let winners = answers.iter().filter_map(|answer| match answer {
            Declared::Accepted { mark, .. } => Some(mark.token.get()),
            _ => None,
        });
        let winners: Vec<u64> = winners.collect();
        assert_eq!(winners, [mark + 1], "seed {seed}: {answers:?}");
    }
}

/// No take names a mark, and each gets a different token.
pub(super) async fn at_once_have_a_token_each(handles: &[Arc<dyn Authority>], seed: u64) {
    let s = fresh_scope();
    let mut tasks = JoinSet::new();
    for store in handles.iter().cycle().take(24) {
        let (store, s) = (Arc::clone(store), s.clone());
        tasks.spawn(async move {
            let made = take(&s, Claim::Next, fresh_backend(), 0);
            taken(answer(store.as_ref(), &made).await).0
        });
    }
    let tokens: BTreeSet<u64> = tasks.join_all().await.into_iter().collect();
    let all: BTreeSet<u64> = (1..=24).collect();
    assert_eq!(tokens, all, "seed {seed}");
}
