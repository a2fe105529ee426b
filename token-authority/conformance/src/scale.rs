//! Many sessions in one scope, and many scopes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use tokio::task::JoinSet;

use pgpalisade_authority::{Authority, Backend, DeclareOutcome, Drained, Scope};

use super::{accepted, backends, declare, fresh_backend, fresh_scope, recover, scope, sessions_of};
use super::{mark_of, token};

#[derive(Debug, Clone, Copy)]
pub struct Scale {
    pub sessions: usize,
    pub scopes: usize,
    /// Declarations at the same time.
    pub at_once: usize,
}

/// Declares many sessions in one scope, takes it over, and drains it in one call. Then creates many scopes and reads
/// all marks. Prints the time of each part and the memory of this process.
pub async fn at_scale(authority: Arc<dyn Authority>, scale: Scale) {
    let store = authority.as_ref();
    recover(store).await;
    many_sessions(&authority, scale).await;
    many_scopes(&authority, scale).await;
    println!("at scale: {}", resident_memory());
}

async fn many_sessions(authority: &Arc<dyn Authority>, scale: Scale) {
    let (store, count) = (authority.as_ref(), scale.sessions);
    let s = fresh_scope();
    let sessions: BTreeSet<Backend> = (0..count).map(|_| fresh_backend()).collect();
    // In a drained scope no declaration reads the sessions.
    let first = sessions.first().expect("some sessions");
    declare(store, &s, 1, *first).await;
    let drained = store.drained(&s, token(1).into(), &[]).await;
    assert_eq!(drained, Ok(Drained::Complete));
    let begin = Instant::now();
    let declarations = sessions.iter().map(|backend| (s.clone(), 1, *backend));
    declare_all(authority, scale, declarations).await;
    println!(
        "at scale: {count} sessions declared in {:?}",
        begin.elapsed()
    );
    let begin = Instant::now();
    let successor = fresh_backend();
    let (_, outcome, lower) = accepted(declare(store, &s, 2, successor).await);
    println!(
        "at scale: raise over {count} sessions in {:?}",
        begin.elapsed()
    );
    assert_eq!(outcome, DeclareOutcome::Raised);
    assert!(lower.is_sorted_by_key(|r| r.backend), "in order");
    assert_eq!(lower.len(), sessions.len(), "each once");
    assert!(backends(&lower) == sessions, "all of them are lower");
    let gone: Vec<Backend> = sessions.iter().copied().collect();
    let (last, others) = gone.split_last().expect("some sessions");
    let left = store.drained(&s, token(2).into(), others).await;
    match left.expect("drained answers") {
        Drained::Left(left) => assert_eq!(backends(&left), BTreeSet::from([*last])),
        Drained::Complete => panic!("one is left"),
    }
    let begin = Instant::now();
    let drained = store.drained(&s, token(2).into(), &gone).await;
    println!(
        "at scale: {count} sessions drained in {:?}",
        begin.elapsed()
    );
    assert_eq!(drained, Ok(Drained::Complete));
    let found = sessions_of(store, &s).await;
    assert_eq!(backends(&found), BTreeSet::from([successor]));
}

async fn many_scopes(authority: &Arc<dyn Authority>, scale: Scale) {
    let (store, count) = (authority.as_ref(), scale.scopes);
    let first = fresh_scope();
    let names: Vec<Scope> = (0..count).map(|n| scope(&format!("{first}/{n}"))).collect();
    let backend = fresh_backend();
    let begin = Instant::now();
    let declarations = (1..)
        .zip(&names)
        .map(|(value, name)| (name.clone(), value, backend));
    declare_all(authority, scale, declarations).await;
    println!("at scale: {count} scopes declared in {:?}", begin.elapsed());
    let begin = Instant::now();
    let marks = store.marks().await.expect("marks answers");
    println!(
        "at scale: {} marks read in {:?}",
        marks.len(),
        begin.elapsed()
    );
    let marks: BTreeMap<Scope, u64> = marks.into_iter().map(|(s, m)| (s, m.token.get())).collect();
    for (value, name) in (1..).zip(&names) {
        assert_eq!(marks.get(name), Some(&value), "{name}");
    }
    let begin = Instant::now();
    store.forget(&[backend]).await.expect("forget answers");
    println!(
        "at scale: one session released in {count} scopes in {:?}",
        begin.elapsed()
    );
    let all = store.sessions().await.expect("sessions answers");
    assert!(
        all.iter().all(|(_, r)| r.backend != backend),
        "released everywhere"
    );
    let last = names.last().expect("some scopes");
    assert!(mark_of(store, last).await.is_some(), "marks stay");
}

/// Declares all, many at once; each must be accepted.
async fn declare_all(
    authority: &Arc<dyn Authority>,
    scale: Scale,
    declarations: impl Iterator<Item = (Scope, u64, Backend)>,
) {
    let mut calls = JoinSet::new();
    for (scope, value, backend) in declarations {
        if calls.len() >= scale.at_once {
            calls.join_next().await.expect("a call").expect("no panic");
        }
        let authority = Arc::clone(authority);
        calls.spawn(async move {
            accepted(declare(authority.as_ref(), &scope, value, backend).await);
        });
    }
    calls.join_all().await;
}

fn resident_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines = status.lines();
    let memory = lines.filter(|l| l.starts_with("VmRSS") || l.starts_with("VmHWM"));
    let memory: Vec<String> = memory
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    memory.join(", ")
}
