//! A store on an etcd, and short names for declarations.

use std::time::{Duration, Instant};

use pgpalisade_authority::etcd::Options;
use pgpalisade_authority::{
    Authority, AuthorityError, Backend, Cluster, Declaration, Declared, Etcd, Registered, Scope,
    Token,
};
use pgpalisade_test_servers::etcd;

pub(crate) const CLUSTER: Cluster = Cluster {
    system_identifier: 7,
    timeline: 1,
    postmaster_us: 1_700_000_000_000_000,
};

pub(crate) fn options(authority: &str) -> Options {
    let text = authority.strip_prefix("etcd:").expect("etcd:");
    text.parse().expect("good options")
}

pub(crate) async fn connect_to(authority: &str) -> Etcd {
    Etcd::connect(options(authority)).await.expect("connected")
}

/// With the cluster enrolled.
pub(crate) async fn connect(etcd: &etcd::Etcd) -> Etcd {
    let store = connect_to(&etcd.authority()).await;
    store.enrol(CLUSTER).await.expect("enrol answers");
    store
}

pub(crate) fn scope(name: &str) -> Scope {
    Scope::new(name).expect("a scope")
}

pub(crate) fn token(value: u64) -> Token {
    Token::new(value).expect("a token")
}

pub(crate) fn backend(pid: i32) -> Backend {
    Backend { pid, started_us: 1 }
}

pub(crate) async fn declare(
    store: &Etcd,
    scope: &Scope,
    value: u64,
    pid: i32,
) -> Result<Declared, AuthorityError> {
    let declaration = Declaration::new(scope, token(value), backend(pid), CLUSTER, "test");
    store.declare(&declaration).await
}

#[track_caller]
pub(crate) fn lower(declared: Declared) -> Vec<Registered> {
    match declared {
        Declared::Accepted { lower, .. } => lower,
        other => panic!("refused: {other:?}"),
    }
}

pub(crate) async fn timed<T>(what: &str, step: impl Future<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    let answer = step.await;
    let took = began.elapsed();
    println!("{what}: {took:?}");
    (answer, took)
}
