//! Server with a store, and common steps of the tests.

use std::time::Duration;

use pgpalisade_authority::postgres::{Options, Postgres};
use pgpalisade_authority::{
    Authority, AuthorityError, Backend, Cluster, Declaration, Declared, Scope, Token,
};

pub(crate) use pgpalisade_test_servers::postgres::Postgres as Server;

pub(crate) const CLUSTER: Cluster = Cluster {
    system_identifier: 7,
    timeline: 1,
    postmaster_us: 1_700_000_000_000_000,
};

pub(crate) fn options(server: &Server) -> Options {
    server.admin_dsn().parse().unwrap()
}

pub(crate) async fn connect(server: &Server) -> Postgres {
    Postgres::connect(&options(server)).await.unwrap()
}

/// A store whose calls fail after a second.
pub(crate) async fn impatient(server: &Server) -> Postgres {
    let options = options(server).with_timeout(Duration::from_secs(1));
    Postgres::connect(&options).await.unwrap()
}

pub(crate) fn scope(name: &str) -> Scope {
    Scope::new(name).unwrap()
}

pub(crate) fn token(value: u64) -> Token {
    Token::new(value).unwrap()
}

pub(crate) fn backend(pid: i32) -> Backend {
    Backend {
        pid,
        started_us: i64::from(pid) * 10,
    }
}

pub(crate) async fn declare(
    store: &Postgres,
    name: &str,
    value: u64,
    pid: i32,
) -> Result<Declared, AuthorityError> {
    let declaration = Declaration::new(&scope(name), token(value), backend(pid), CLUSTER, "test");
    store.declare(&declaration).await
}
