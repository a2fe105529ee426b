//! What every store must do, as tests that any store can be put through. They panic where it does not.
//!
//! Scopes and sessions get random names, so the suite can run on a store that is in use or has run it before.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test suite speaks by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use crate::{
    Authority, Backend, Declaration, Declared, Drained, Mark, Outcome, Registered, Scope, Token,
};

/// All tests. `seed` fixes the schedule of the concurrent ones as far as the threads allow; it is printed.
pub async fn run(authority: Arc<dyn Authority>, seed: u64) {
    let store = authority.as_ref();
    raises_and_refuses(store).await;
    lists_lower_sessions_until_drained(store).await;
    moves_up_and_never_down(store).await;
    drained_removes_lower_records_only(store).await;
    late_drained_does_not_count(store).await;
    release_and_forget_remove_everywhere(store).await;
    scopes_are_apart(store).await;
    println!("conformance: concurrent parts run with seed {seed}");
    concurrent_raises_see_every_lower_session(&authority, seed).await;
    concurrent_schedule_loses_no_session(&authority, seed).await;
}

/// A scope nobody else uses.
fn fresh_scope() -> Scope {
    scope(&format!("conformance/{:016x}", rand::random::<u64>()))
}

fn scope(name: &str) -> Scope {
    Scope::new(name).expect("a valid scope")
}

fn token(value: u64) -> Token {
    Token::new(value).expect("a valid token")
}

/// A session nobody else uses.
fn fresh_backend() -> Backend {
    Backend {
        pid: rand::random_range(1..=i32::MAX),
        started_us: rand::random_range(0..1 << 62),
    }
}

async fn declare(store: &dyn Authority, scope: &Scope, value: u64, backend: Backend) -> Declared {
    let declaration = Declaration {
        scope,
        token: token(value),
        backend,
        by: "suite",
    };
    store.declare(&declaration).await.expect("declare answers")
}

#[track_caller]
fn accepted(declared: Declared) -> (Mark, Outcome, Vec<Registered>) {
    match declared {
        Declared::Accepted {
            mark,
            outcome,
            lower,
        } => (mark, outcome, lower),
        Declared::Stale { mark } => panic!("refused as stale, mark {}", mark.token),
    }
}

#[track_caller]
fn stale(declared: Declared) -> Mark {
    match declared {
        Declared::Stale { mark } => mark,
        Declared::Accepted { mark, .. } => panic!("accepted, mark {}", mark.token),
    }
}

fn backends(records: &[Registered]) -> BTreeSet<Backend> {
    records.iter().map(|r| r.backend).collect()
}

async fn sessions_of(store: &dyn Authority, scope: &Scope) -> Vec<Registered> {
    let all = store.sessions().await.expect("sessions answers");
    all.into_iter()
        .filter(|(s, _)| s == scope)
        .map(|(_, r)| r)
        .collect()
}

async fn mark_of(store: &dyn Authority, scope: &Scope) -> Option<Mark> {
    let all = store.marks().await.expect("marks answers");
    all.into_iter().find(|(s, _)| s == scope).map(|(_, m)| m)
}

async fn raises_and_refuses(store: &dyn Authority) {
    let (s, a, b) = (fresh_scope(), fresh_backend(), fresh_backend());
    assert_eq!(mark_of(store, &s).await, None);
    let (raised, outcome, lower) = accepted(declare(store, &s, 5, a).await);
    assert_eq!(
        (raised.token, outcome, lower),
        (token(5), Outcome::Raised, vec![])
    );
    assert_eq!(raised.raised_by, "suite");
    let (current, outcome, _) = accepted(declare(store, &s, 5, b).await);
    assert_eq!(
        (&current, outcome),
        (&raised, Outcome::Current),
        "equal changes nothing"
    );
    assert_eq!(stale(declare(store, &s, 4, fresh_backend()).await), raised);
    assert_eq!(stale(declare(store, &s, 1, a).await), raised);
    assert_eq!(mark_of(store, &s).await, Some(raised));
    let max = accepted(declare(store, &s, Token::MAX, b).await).0;
    assert_eq!(max.token.get(), Token::MAX);
    assert_eq!(stale(declare(store, &s, Token::MAX - 1, a).await), max);
}

async fn lists_lower_sessions_until_drained(store: &dyn Authority) {
    let s = fresh_scope();
    let [a, b, c, d] = [
        fresh_backend(),
        fresh_backend(),
        fresh_backend(),
        fresh_backend(),
    ];
    declare(store, &s, 1, a).await;
    declare(store, &s, 2, b).await;
    let (_, outcome, lower) = accepted(declare(store, &s, 3, c).await);
    assert_eq!(outcome, Outcome::Raised);
    assert_eq!(backends(&lower), BTreeSet::from([a, b]));
    assert_eq!(
        lower.iter().map(|r| r.token.get()).sum::<u64>(),
        3,
        "with their tokens"
    );
    let (_, outcome, lower) = accepted(declare(store, &s, 3, d).await);
    assert_eq!(outcome, Outcome::Current);
    assert_eq!(
        backends(&lower),
        BTreeSet::from([a, b]),
        "any proxy can finish the barrier"
    );
    let left = store
        .drained(&s, token(3), &[a])
        .await
        .expect("drained answers");
    match left {
        Drained::Left(left) => assert_eq!(backends(&left), BTreeSet::from([b])),
        Drained::Complete => panic!("drained though {b} is registered"),
    }
    let (.., lower) = accepted(declare(store, &s, 3, d).await);
    assert_eq!(backends(&lower), BTreeSet::from([b]));
    assert_eq!(
        store.drained(&s, token(3), &[b]).await,
        Ok(Drained::Complete)
    );
    assert_eq!(accepted(declare(store, &s, 3, d).await).2, vec![]);
    let (.., lower) = accepted(declare(store, &s, 9, fresh_backend()).await);
    assert_eq!(
        backends(&lower),
        BTreeSet::from([c, d]),
        "the next raise is not drained"
    );
}

async fn moves_up_and_never_down(store: &dyn Authority) {
    let (s, a, b) = (fresh_scope(), fresh_backend(), fresh_backend());
    declare(store, &s, 1, a).await;
    declare(store, &s, 1, b).await;
    let (.., lower) = accepted(declare(store, &s, 2, a).await);
    assert_eq!(
        backends(&lower),
        BTreeSet::from([b]),
        "a moved, so it is not its own victim"
    );
    stale(declare(store, &s, 1, a).await);
    let held: BTreeMap<Backend, u64> = sessions_of(store, &s)
        .await
        .into_iter()
        .map(|r| (r.backend, r.token.get()))
        .collect();
    assert_eq!(held, BTreeMap::from([(a, 2), (b, 1)]));
    let (_, outcome, lower) = accepted(declare(store, &s, 2, b).await);
    assert_eq!((outcome, lower), (Outcome::Current, vec![]), "b moved too");
}

async fn drained_removes_lower_records_only(store: &dyn Authority) {
    let (s, a, b) = (fresh_scope(), fresh_backend(), fresh_backend());
    let other = fresh_scope();
    declare(store, &s, 1, a).await;
    declare(store, &other, 1, a).await;
    declare(store, &s, 2, b).await;
    let twin = Backend {
        started_us: a.started_us ^ 1,
        ..a
    };
    assert!(matches!(
        store.drained(&s, token(2), &[twin]).await,
        Ok(Drained::Left(_))
    ));
    assert_eq!(
        store.drained(&s, token(2), &[a, b, twin]).await,
        Ok(Drained::Complete)
    );
    assert_eq!(
        backends(&sessions_of(store, &s).await),
        BTreeSet::from([b]),
        "b is not lower"
    );
    assert_eq!(
        backends(&sessions_of(store, &other).await),
        BTreeSet::from([a])
    );
}

async fn late_drained_does_not_count(store: &dyn Authority) {
    let (s, a, b, c) = (
        fresh_scope(),
        fresh_backend(),
        fresh_backend(),
        fresh_backend(),
    );
    declare(store, &s, 1, a).await;
    declare(store, &s, 2, b).await;
    declare(store, &s, 3, c).await;
    // The barrier of token 2 reports late, and one for a token that nobody has declared reports at all.
    assert_eq!(
        store.drained(&s, token(2), &[a]).await,
        Ok(Drained::Complete)
    );
    assert!(matches!(
        store.drained(&s, token(9), &[]).await,
        Ok(Drained::Left(_))
    ));
    let (.., lower) = accepted(declare(store, &s, 3, c).await);
    assert_eq!(
        backends(&lower),
        BTreeSet::from([b]),
        "token 3 is not drained by 2 or 9"
    );
    let unknown = fresh_scope();
    assert_eq!(
        store.drained(&unknown, token(7), &[]).await,
        Ok(Drained::Complete)
    );
    assert_eq!(mark_of(store, &unknown).await, None, "drained sets no mark");
    accepted(declare(store, &unknown, 1, a).await);
}

async fn release_and_forget_remove_everywhere(store: &dyn Authority) {
    let (s, t) = (fresh_scope(), fresh_scope());
    let [a, b, c] = [fresh_backend(), fresh_backend(), fresh_backend()];
    for backend in [a, b, c] {
        declare(store, &s, 1, backend).await;
        declare(store, &t, 1, backend).await;
    }
    store.release(a).await.expect("release answers");
    store.release(a).await.expect("again is no error");
    assert_eq!(
        backends(&sessions_of(store, &s).await),
        BTreeSet::from([b, c])
    );
    assert_eq!(
        backends(&sessions_of(store, &t).await),
        BTreeSet::from([b, c])
    );
    store
        .forget(&[b, fresh_backend()])
        .await
        .expect("forget answers");
    assert_eq!(backends(&sessions_of(store, &t).await), BTreeSet::from([c]));
    let (.., lower) = accepted(declare(store, &s, 2, a).await);
    assert_eq!(
        backends(&lower),
        BTreeSet::from([c]),
        "released sessions are not ended"
    );
    assert_eq!(
        mark_of(store, &t).await.map(|m| m.token),
        Some(token(1)),
        "marks stay"
    );
}

async fn scopes_are_apart(store: &dyn Authority) {
    let s = fresh_scope();
    // Names that begin alike must not meet in a range scan.
    let longer = scope(&format!("{s}/x"));
    let (a, b) = (fresh_backend(), fresh_backend());
    declare(store, &s, 8, a).await;
    let (_, outcome, lower) = accepted(declare(store, &longer, 3, b).await);
    assert_eq!((outcome, lower), (Outcome::Raised, vec![]));
    let (.., lower) = accepted(declare(store, &s, 9, b).await);
    assert_eq!(backends(&lower), BTreeSet::from([a]));
    assert_eq!(
        mark_of(store, &longer).await.map(|m| m.token),
        Some(token(3))
    );
}

/// What a task of the concurrent tests saw.
struct Seen {
    declared: Token,
    backend: Backend,
    answer: Declared,
}

/// Every session declares once and nothing is removed. Then the answer to each raise must name exactly the
/// sessions that were accepted with a lower token, and each token has at most one raise.
async fn concurrent_raises_see_every_lower_session(authority: &Arc<dyn Authority>, seed: u64) {
    let s = fresh_scope();
    let mut tasks = JoinSet::new();
    for task in 0..8_u64 {
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
        if *outcome == Outcome::Raised {
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

/// Sessions declare, move, are released and are drained. In the end no session is missing: one that was
/// accepted
/// with a token below the mark is still registered, or somebody released or drained it.
async fn concurrent_schedule_loses_no_session(authority: &Arc<dyn Authority>, seed: u64) {
    let s = fresh_scope();
    let mut tasks = JoinSet::new();
    for task in 0..8_u64 {
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
    let store = authority.as_ref();
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

/// One task's part: what it holds in the end, what it had drained, and the highest mark it saw.
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
            store.release(backend).await.expect("release answers");
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
                    .drained(s, mark.token, &ended)
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
            Declared::Stale { mark } => assert!(mark.token > *declared, "stale without reason"),
        }
    }
}
