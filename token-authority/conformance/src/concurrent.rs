//! Concurrent tasks: the order that the store gives to their steps must explain every answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use pgpalisade_authority::{Authority, Backend, DeclareOutcome, Declared, Mark, Scope, Token};

use super::{backends, declare, fresh_backend, fresh_scope, mark_of, sessions_of, token};

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

/// Sessions declare, move up, are released and are drained. In the end every accepted session is registered, released
/// or drained.
pub(super) async fn schedule_loses_no_session(handles: &[Arc<dyn Authority>], seed: u64) {
    let s = fresh_scope();
    let mut tasks = JoinSet::new();
    for (task, authority) in (0..8_u64).zip(handles.iter().cycle()) {
        let (authority, s) = (Arc::clone(authority), s.clone());
        let rng = StdRng::seed_from_u64(seed ^ (task << 8));
        tasks.spawn(async move { schedule(authority.as_ref(), &s, rng).await });
    }
    let mut expect: BTreeMap<Backend, Token> = BTreeMap::new();
    let mut removed = BTreeSet::new();
    let mut highest = None;
    for (held, gone, mark) in tasks.join_all().await {
        expect.extend(held);
        removed.extend(gone);
        highest = highest.max(mark);
    }
    assert!(
        !removed.is_empty() && !expect.is_empty(),
        "the schedule did too little, seed {seed}"
    );
    let store = handles.first().expect("a handle").as_ref();
    let found: BTreeMap<Backend, Token> = sessions_of(store, &s)
        .await
        .into_iter()
        .map(|r| (r.backend, r.token))
        .collect();
    for (backend, token) in &expect {
        let drained = removed.contains(&(*backend, *token));
        assert!(
            drained || found.get(backend) == Some(token),
            "{backend} at {token} is lost, found {:?}, seed {seed}",
            found.get(backend)
        );
    }
    for backend in found.keys() {
        assert!(
            expect.contains_key(backend),
            "{backend} came back, seed {seed}"
        );
    }
    assert_eq!(
        mark_of(store, &s).await.map(|m| m.token),
        highest,
        "seed {seed}"
    );
}

type Held = BTreeMap<Backend, Token>;
type Gone = BTreeSet<(Backend, Token)>;

/// Runs one task. Returns what it holds in the end, what it had drained, and the highest mark it saw.
async fn schedule(
    store: &dyn Authority,
    s: &Scope,
    mut rng: StdRng,
) -> (Held, Gone, Option<Token>) {
    let mut held = Held::new();
    let mut gone = Gone::new();
    let mut seen: Vec<Seen> = Vec::new();
    for step in 1..=50_u64 {
        let value = step + rng.random_range(0..4);
        let mine = held.keys().nth(rng.random_range(0..4)).copied();
        if let Some(backend) = mine
            && rng.random_ratio(1, 4)
        {
            store.forget(&[backend]).await.expect("forget answers");
            held.remove(&backend);
            continue;
        }
        let backend = mine
            .filter(|_| rng.random_ratio(1, 2))
            .unwrap_or_else(fresh_backend);
        let answer = declare(store, s, value, backend).await;
        if let Declared::Accepted { mark, lower, .. } = &answer {
            assert!(
                !backends(lower).contains(&backend),
                "{backend} is its own victim"
            );
            held.insert(backend, mark.token);
            if rng.random_ratio(1, 3) {
                let ended: Vec<Backend> = backends(lower).into_iter().collect();
                store
                    .drained(s, mark.rank(), &ended)
                    .await
                    .expect("drained answers");
                gone.extend(lower.iter().map(|r| (r.backend, r.token)));
            }
        }
        seen.push(Seen {
            declared: token(value),
            backend,
            answer,
        });
    }
    assert_marks_never_fall(&seen);
    (held, gone, seen.iter().map(|x| mark(&x.answer).token).max())
}

fn mark(answer: &Declared) -> &Mark {
    match answer {
        Declared::Accepted { mark, .. } | Declared::Stale { mark } => mark,
        Declared::OtherCluster { recorded } => panic!("refused, {recorded:?} is on record"),
        Declared::TooFar { mark } => panic!("too far above {mark:?}, without a bound"),
        Declared::NotElected { .. } => panic!("no election was named"),
        Declared::MarkIsLower { mark } => panic!("{mark:?} is lower than a mark that none named"),
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
