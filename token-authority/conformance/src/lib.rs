//! Suite of tests that every store must pass. They panic on failure.
//!
//! [`follows_the_rule`] compares what a step does with the rule. The other tests are about concurrency, abandoned
//! calls, amounts, time, the watch and the history.
//!
//! Scopes and sessions get random names, so the suite can run on a store in use.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test suite speaks by panicking"
)]

mod abandoned;
mod concurrent;
mod generated;
mod history;
mod leases;
mod memory;
mod racing;
mod repairs;
mod scale;
mod takes;
mod watching;

pub use generated::follows_the_rule;
pub use leases::lapse as leases_lapse;
pub use memory::MemoryStore;
pub use scale::{Scale, at_scale};

use std::collections::BTreeSet;
use std::sync::Arc;

use pgpalisade_authority::{
    Authority, AuthorityError, Backend, Cluster, Declaration, DeclareOutcome, Declared, Enrolled,
    Mark, Registered, Scope, Token,
};

/// Runs all tests. `seed` fixes the schedule of the concurrent ones as far as the threads allow; it is printed.
pub async fn run(authority: Arc<dyn Authority>, seed: u64) {
    let store = authority.as_ref();
    recover(store).await;
    history::is_kept_of_each_scope(store).await;
    history::has_one_record_for_all_attempts(store).await;
    concurrently(&[Arc::clone(&authority)], seed).await;
    watching::changes_are_told(store, store).await;
    watching::repairs_are_told(store, store).await;
}

/// Tests for two proxies that share a store: `a` and `b` are separate handles on it.
pub async fn run_two(a: Arc<dyn Authority>, b: Arc<dyn Authority>, seed: u64) {
    assert_eq!(a.identity(), b.identity(), "two handles on one store");
    recover(a.as_ref()).await;
    let two = [a, b];
    concurrently(&two, seed).await;
    history::loses_none_of_two(&two).await;
    let [a, b] = &two;
    watching::changes_are_told(a.as_ref(), b.as_ref()).await;
    watching::changes_are_told(b.as_ref(), a.as_ref()).await;
    watching::repairs_are_told(a.as_ref(), b.as_ref()).await;
    watching::repairs_are_told(b.as_ref(), a.as_ref()).await;
}

/// Tests of calls that run at once, on one handle or on several.
async fn concurrently(handles: &[Arc<dyn Authority>], seed: u64) {
    println!("conformance: concurrent parts run with seed {seed}");
    concurrent::raises_see_every_lower_session(handles, seed).await;
    takes::at_once_have_one_winner(handles, seed).await;
    takes::at_once_have_a_token_each(handles, seed).await;
    leases::at_once_have_one_winner(handles).await;
    abandoned::calls_leave_nothing_broken(handles, seed).await;
    racing::enrolment_ends_the_cluster_before(handles).await;
    repairs::are_ordered_with_declarations(handles).await;
    repairs::that_race_are_one(handles).await;
    repairs::that_are_abandoned_are_taken_once(handles, seed).await;
}

/// Cluster of all declarations.
const CLUSTER: Cluster = Cluster {
    system_identifier: 0xffff_0000_1111_2222,
    timeline: 3,
    postmaster_us: 1_700_000_000_000_000,
};

/// Records [`CLUSTER`], whatever is recorded.
async fn recover(store: &dyn Authority) {
    let seen = store.cluster().await.expect("cluster answers");
    let recovered = store.recover(seen, CLUSTER, &[]).await;
    assert_eq!(recovered, Ok(Enrolled::Accepted));
}

fn fresh_scope() -> Scope {
    scope(&format!("conformance/{:016x}", rand::random::<u64>()))
}

fn scope(name: &str) -> Scope {
    Scope::new(name).expect("a valid scope")
}

fn token(value: u64) -> Token {
    Token::new(value).expect("a valid token")
}

fn fresh_backend() -> Backend {
    Backend {
        pid: rand::random_range(1..=i32::MAX),
        started_us: rand::random_range(0..1 << 62),
    }
}

async fn declare(store: &dyn Authority, scope: &Scope, value: u64, backend: Backend) -> Declared {
    let declared = declare_on(store, CLUSTER, scope, value, backend).await;
    declared.expect("declare answers")
}

async fn declare_on(
    store: &dyn Authority,
    cluster: Cluster,
    scope: &Scope,
    value: u64,
    backend: Backend,
) -> Result<Declared, AuthorityError> {
    let declaration = Declaration::new(scope, token(value), backend, cluster, "suite");
    store.declare(&declaration).await
}

#[track_caller]
fn accepted(declared: Declared) -> (Mark, DeclareOutcome, Vec<Registered>) {
    match declared {
        Declared::Accepted {
            mark,
            outcome,
            lower,
        } => (mark, outcome, lower),
        other => panic!("refused: {other:?}"),
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
