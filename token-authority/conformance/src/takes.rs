//! Takes: the token after the mark, for locks without a number.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use pgpalisade_authority::{Authority, Backend, Claim, Declaration, Declared, Scope, TakeId};

use super::{CLUSTER, accepted, fresh_backend, fresh_scope, token};

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
            accepted(answer(store.as_ref(), &made).await).0.token.get()
        });
    }
    let tokens: BTreeSet<u64> = tasks.join_all().await.into_iter().collect();
    let all: BTreeSet<u64> = (1..=24).collect();
    assert_eq!(tokens, all, "seed {seed}");
}
