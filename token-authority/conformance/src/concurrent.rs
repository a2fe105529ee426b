//! Concurrent tasks: the order that the store gives to their steps must explain every answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use pgpalisade_authority::{Authority, Backend, DeclareOutcome, Declared, Mark, Token};

use super::{backends, declare, fresh_backend, fresh_scope, token};

struct Seen {
    declared: Token,
    backend: Backend,
    answer: Declared,
}

/// Every session declares once. Then each raise must list exactly the sessions accepted with a lower token, and each
/// token is raised at most once.
pub(super) async fn raises_see_every_lower_session(handles: &[Arc<dyn Authority>], seed: u64) {
    let s = fresh_scope();
    let mut tasks = JoinSet::new();
    for (task, authority) in (0..8_u64).zip(handles.iter().cycle()) {
        let (authority, s) = (Arc::clone(authority), s.clone());
        let mut rng = StdRng::seed_from_u64(seed ^ task);
        tasks.spawn(async move {
            let mut seen: Vec<Seen> = Vec::new();
            for step in 1..=40_u64 {
                let value = step + rng.random_range(0..6);
                let backend = fresh_backend();
                let answer = declare(authority.as_ref(), &s, value, backend).await;
                seen.push(Seen {
                    declared: token(value),
                    backend,
                    answer,
                });
            }
            assert_marks_never_fall(&seen);
            seen
        });
    }
    let seen: Vec<Seen> = tasks.join_all().await.into_iter().flatten().collect();
    let taken: Vec<(Token, Backend)> = seen
        .iter()
        .filter(|x| matches!(x.answer, Declared::Accepted { .. }))
        .map(|x| (x.declared, x.backend))
        .collect();
    let mut raised = BTreeSet::new();
    for Seen {
        declared, answer, ..
    } in &seen
    {
        let Declared::Accepted { outcome, lower, .. } = answer else {
            continue;
        };
        let expect = taken
            .iter()
            .filter(|(t, _)| t < declared)
            .map(|(_, b)| *b)
            .collect();
        assert_eq!(
            backends(lower),
            expect,
            "token {declared} of {s}, seed {seed}"
        );
        if *outcome == DeclareOutcome::Raised {
            assert!(
                raised.insert(*declared),
                "token {declared} was raised twice, seed {seed}"
            );
        }
    }
    assert!(
        raised.len() > 10,
        "the schedule raised only {} times",
        raised.len()
    );
}

fn mark(answer: &Declared) -> &Mark {
    match answer {
        Declared::Accepted { mark, .. } | Declared::Stale { mark } => mark,
        other => panic!("refused: {other:?}"),
    }
}

#[track_caller]
fn assert_marks_never_fall(seen: &[Seen]) {
    for pair in seen.windows(2) {
        let [before, after] = pair else { continue };
        assert!(
            mark(&before.answer).token <= mark(&after.answer).token,
            "a mark fell"
        );
    }
    for Seen {
        declared, answer, ..
    } in seen
    {
        match answer {
            Declared::Accepted { mark, lower, .. } => {
                assert_eq!(mark.token, *declared);
                assert!(lower.iter().all(|r| r.token < *declared), "not lower");
            }
            _ => {
                assert!(mark(answer).token > *declared, "stale without reason");
            }
        }
    }
}
