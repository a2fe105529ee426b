//! Callers that abandon calls: between any two steps, with the step taken or not.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::timeout;

use pgpalisade_authority::{Answer, Authority, Backend, Declared, Scope, Token};

use super::{CLUSTER, accepted, token};
use super::{backends, declare, declare_on, fresh_backend, fresh_scope, mark_of, sessions_of};

/// Checks of the store until abandoned steps have ended.
const LOOKS: u32 = 40;

#[derive(Default)]
struct Part {
    /// Accepted declarations, with the token.
    held: BTreeMap<(Scope, Backend), Token>,
    declared: BTreeSet<(Scope, Backend, Token)>,
    /// Sessions with a removal begun; not used again.
    ending: BTreeSet<Backend>,
    /// Highest token for which a session was reported as gone, answered or not.
    reported: BTreeMap<(Scope, Backend), Token>,
    marks: BTreeMap<Scope, Token>,
    dropped: u32,
}

/// Drops the calls of many tasks at random moments. Then no accepted session is missing, no mark has fallen, and
/// every registered session was declared. No scope with lower records counts as drained. No session is half
/// registered, so that it could not be forgotten.
pub(super) async fn calls_leave_nothing_broken(handles: &[Arc<dyn Authority>], seed: u64) {
    let scopes = [fresh_scope(), fresh_scope(), fresh_scope()];
    let mut tasks = JoinSet::new();
    for (task, store) in (0..8_u64).zip(handles.iter().cycle()) {
        let (store, scopes) = (Arc::clone(store), scopes.clone());
        let rng = StdRng::seed_from_u64(seed ^ (task << 16));
        tasks.spawn(async move { part(store.as_ref(), &scopes, rng).await });
    }
    let mut all = Part::default();
    for part in tasks.join_all().await {
        all.held.extend(part.held);
        all.declared.extend(part.declared);
        all.ending.extend(part.ending);
        for (key, value) in part.reported {
            let highest = all.reported.entry(key).or_insert(value);
            *highest = value.max(*highest);
        }
        for (scope, value) in part.marks {
            let highest = all.marks.entry(scope).or_insert(value);
            *highest = value.max(*highest);
        }
        all.dropped += part.dropped;
    }
    assert!(all.dropped > 50, "only {} calls were dropped", all.dropped);
    let store = handles.first().expect("a handle").as_ref();
    for scope in &scopes {
        assert_whole(store, scope, &all, seed).await;
    }
    for scope in &scopes {
        assert_all_are_forgotten(store, scope, seed).await;
    }
}

/// Waits for the answer, or drops the call: at once, a moment later, or never.
async fn perhaps<T>(
    rng: &mut StdRng,
    dropped: &mut u32,
    call: impl Future<Output = Answer<T>>,
) -> Option<T> {
    let mut call = pin!(call);
    // A timeout of no time would still wait for the next tick of the timer, and a quick store may answer before.
    let answer = match rng.random_range(0..3) {
        0 => poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await,
        1 => {
            let moment = Duration::from_micros(rng.random_range(100..3000));
            timeout(moment, call)
                .await
                .map_or(Poll::Pending, Poll::Ready)
        }
        _ => Poll::Ready(call.await),
    };
    let Poll::Ready(answer) = answer else {
        *dropped += 1;
        return None;
    };
    Some(answer.expect("the store answers"))
}

async fn part(store: &dyn Authority, scopes: &[Scope; 3], mut rng: StdRng) -> Part {
    let mut part = Part::default();
    for step in 1..=90_u64 {
        let scope = scopes.choose(&mut rng).expect("three scopes");
        match rng.random_range(0..10) {
            0 => part.end(store, &mut rng).await,
            1..=2 => part.report(store, scope, step, &mut rng).await,
            _ => part.declare(store, scope, step, &mut rng).await,
        }
    }
    part
}

impl Part {
    fn one_of_mine(&self, rng: &mut StdRng) -> Option<Backend> {
        let mine = self.held.keys().map(|(_, backend)| *backend);
        let mut usable = mine.filter(|backend| !self.ending.contains(backend));
        usable.nth(rng.random_range(0..6))
    }

    async fn end(&mut self, store: &dyn Authority, rng: &mut StdRng) {
        let Some(backend) = self.one_of_mine(rng) else {
            return;
        };
        self.ending.insert(backend);
        let gone = [backend];
        perhaps(rng, &mut self.dropped, store.forget(&gone)).await;
    }

    async fn report(&mut self, store: &dyn Authority, scope: &Scope, step: u64, rng: &mut StdRng) {
        let token = token(step + rng.random_range(0..4));
        let found = sessions_of(store, scope).await;
        let lower = found.into_iter().filter(|r| r.token < token);
        let rarely = rng.random_range(1..8);
        let gone: Vec<Backend> = lower
            .filter(|_| rng.random_range(0..8) >= rarely)
            .map(|r| r.backend)
            .collect();
        for backend in &gone {
            let highest = self
                .reported
                .entry((scope.clone(), *backend))
                .or_insert(token);
            *highest = token.max(*highest);
        }
        let call = store.drained(scope, token.into(), &gone);
        perhaps(rng, &mut self.dropped, call).await;
    }

    async fn declare(&mut self, store: &dyn Authority, scope: &Scope, step: u64, rng: &mut StdRng) {
        let value = step + rng.random_range(0..4);
        let mine = self.one_of_mine(rng).filter(|_| rng.random());
        let backend = mine.unwrap_or_else(fresh_backend);
        let key = (scope.clone(), backend, token(value));
        self.declared.insert(key);
        let call = declare_on(store, CLUSTER, scope, value, backend);
        let Some(answer) = perhaps(rng, &mut self.dropped, call).await else {
            return;
        };
        let mark = match answer {
            Declared::Accepted { mark, lower, .. } => {
                assert!(!backends(&lower).contains(&backend), "its own victim");
                self.held.insert((scope.clone(), backend), mark.token);
                mark.token
            }
            Declared::Stale { mark } => mark.token,
            other => panic!("refused: {other:?}"),
        };
        let before = self.marks.insert(scope.clone(), mark);
        assert!(before <= Some(mark), "the mark of {scope} fell");
    }
}

async fn assert_whole(store: &dyn Authority, scope: &Scope, all: &Part, seed: u64) {
    for look in 1..=LOOKS {
        match faults(store, scope, all).await {
            None => return,
            // Dropped calls may still be in progress.
            Some(_) if look < LOOKS => tokio::time::sleep(Duration::from_millis(50)).await,
            Some(fault) => panic!("{scope}, seed {seed}: {fault}"),
        }
    }
}

async fn assert_all_are_forgotten(store: &dyn Authority, scope: &Scope, seed: u64) {
    let mut left = sessions_of(store, scope).await;
    for _ in 0..LOOKS {
        let gone: Vec<Backend> = backends(&left).into_iter().collect();
        store.forget(&gone).await.expect("forget answers");
        left = sessions_of(store, scope).await;
        if left.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{scope}, seed {seed}: {left:?} stay for ever");
}

/// Fault of a scope, if any.
async fn faults(store: &dyn Authority, scope: &Scope, all: &Part) -> Option<String> {
    let mark = mark_of(store, scope).await?.token;
    if all.marks.get(scope).is_some_and(|seen| *seen > mark) {
        return Some(format!("the mark fell to {mark}"));
    }
    let found = sessions_of(store, scope).await;
    for session in &found {
        let key = (scope.clone(), session.backend, session.token);
        if !all.declared.contains(&key) {
            return Some(format!("{session:?} was never declared"));
        }
    }
    let token_of = |backend: &Backend| {
        let session = found.iter().find(|r| r.backend == *backend)?;
        Some(session.token)
    };
    for ((_, backend), held) in all.held.iter().filter(|((s, _), _)| s == scope) {
        let reported = all.reported.get(&(scope.clone(), *backend));
        let may_be_gone = all.ending.contains(backend) || reported > Some(held);
        let there = token_of(backend);
        if !may_be_gone && there < Some(*held) {
            return Some(format!("{backend} had {held} accepted, found {there:?}"));
        }
    }
    let lower: BTreeSet<Backend> = found
        .iter()
        .filter(|r| r.token < mark)
        .map(|r| r.backend)
        .collect();
    let looker = fresh_backend();
    let declared = declare(store, scope, mark.get(), looker).await;
    if let Declared::Stale { mark } = declared {
        return Some(format!(
            "a dropped call has raised the mark to {} since",
            mark.token
        ));
    }
    let (.., told) = accepted(declared);
    store.forget(&[looker]).await.expect("forget answers");
    let told = backends(&told);
    (told != lower).then(|| format!("lower are {lower:?}, but told are {told:?}"))
}
