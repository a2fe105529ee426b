//! Takeovers on a real PostgreSQL: old sessions end and commit nothing, and what cannot be confirmed is
//! refused.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod control;
mod incomplete;
mod refused;
mod register;
mod repair;
mod support;
mod unanswered;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pgpalisade_authority::{
    Authority, Backend, Embedded, Mark, Scope, TakeoverEnd, TakeoverRecord, Token,
};
use pgpalisade_policies::TokenBounds;
use pgpalisade_takeover::{
    DeclareError, Identified, SessionProbe, StartError, StoreLock, Takeover, TakeoverOptions,
};
use pgpalisade_test_servers::machine::Signal;
use support::{Postgres, Slow};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

fn token(value: u64) -> Token {
    Token::new(value).unwrap()
}

fn options(postgres: &Postgres) -> TakeoverOptions {
    TakeoverOptions::new(postgres.config("postgres"), "test".to_owned())
}

fn store(postgres: &Postgres) -> Arc<Embedded> {
    Arc::new(Embedded::open(&postgres.dir().join("authority")).unwrap())
}

async fn start(options: TakeoverOptions, store: &Arc<Embedded>) -> Result<Takeover, StartError> {
    Takeover::start(options, Arc::clone(store) as _, CancellationToken::new()).await
}

async fn declare(takeover: &Takeover, value: u64, backend: Backend) -> Result<Mark, DeclareError> {
    declare_for(takeover, value, identified(takeover, backend)).await
}

async fn declare_for(
    takeover: &Takeover,
    value: u64,
    session: Identified,
) -> Result<Mark, DeclareError> {
    support::declare(takeover, value, session, TokenBounds::default()).await
}

/// A session on the cluster that the proxy is connected to.
fn identified(takeover: &Takeover, backend: Backend) -> Identified {
    let cluster = takeover.cluster().unwrap();
    Identified { backend, cluster }
}

/// Identifies the session with this pid that has sent a probe.
async fn found(
    takeover: &Takeover,
    pid: i32,
    trace: SessionProbe,
) -> Result<Backend, DeclareError> {
    let found = takeover.identify(pid, trace, takeover.deadline()).await;
    found.map(|found| found.backend)
}

async fn identify(takeover: &Takeover, session: &Client) -> Result<Backend, DeclareError> {
    let (pid, trace) = (pid(session).await, SessionProbe::random());
    session.batch_execute(trace.text()).await.unwrap();
    found(takeover, pid, trace).await
}

async fn pid(client: &Client) -> i32 {
    let row = client.query_one("SELECT pg_backend_pid()", &[]).await;
    row.unwrap().get(0)
}

/// A server, a store, and a proxy between them.
async fn started() -> (Postgres, Arc<Embedded>, Takeover) {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let takeover = start(options(&postgres), &store).await.unwrap();
    (postgres, store, takeover)
}

async fn ran(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap();
}

/// A session of `user` that the proxy knows.
async fn joined(postgres: &Postgres, takeover: &Takeover, user: &str) -> (Client, Backend) {
    let client = postgres.connect(user).await;
    let backend = identify(takeover, &client).await.unwrap();
    (client, backend)
}

/// A session of `user` that has declared a token.
async fn declared(
    postgres: &Postgres,
    takeover: &Takeover,
    user: &str,
    value: u64,
) -> (Client, Backend) {
    let (client, backend) = joined(postgres, takeover, user).await;
    declare(takeover, value, backend).await.unwrap();
    (client, backend)
}

async fn registered(store: &Embedded) -> Vec<Backend> {
    let sessions = store.sessions().await.unwrap().into_iter();
    let mut all: Vec<Backend> = sessions.map(|(_, r)| r.backend).collect();
    all.sort_unstable();
    all
}

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Waits until `sql` returns the count `expect`.
async fn eventually(client: &Client, sql: &str, expect: i64) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while count(client, sql).await != expect {
        assert!(Instant::now() < give_up, "{sql} is not {expect}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn eventually_registered(store: &Embedded, expect: &[Backend]) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while registered(store).await != expect {
        assert!(
            Instant::now() < give_up,
            "{:?} is not {expect:?}",
            registered(store).await
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Record of the last takeover by this token, after it has ended in this way.
async fn kept(
    takeover: &Takeover,
    to: u64,
    is_so: impl Fn(&TakeoverEnd) -> bool,
) -> TakeoverRecord {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        let all = takeover.history(takeover.deadline());
        match all.await.unwrap().into_iter().next() {
            Some((_, last)) if last.to == token(to) && is_so(&last.end) => return last,
            other => assert!(Instant::now() < give_up, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
