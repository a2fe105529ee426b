//! Samples for the tests of the machines.

use pgpalisade_authority::{Backend, Cluster, Incarnation, Mark, Registered, Token};

pub(crate) const OURS: Cluster = Cluster {
    system_identifier: 1,
    timeline: 2,
    postmaster_us: 1,
};

/// The same server, started later.
pub(crate) const LATER: Cluster = Cluster {
    postmaster_us: 2,
    ..OURS
};

pub(crate) fn token(value: u64) -> Token {
    Token::new(value).unwrap()
}

pub(crate) fn mark(value: u64) -> Mark {
    Mark::new(token(value), 1, "a test".to_owned())
}

/// Sessions with these process ids, which are also their starts.
pub(crate) fn backends(pids: &[i32]) -> Vec<Backend> {
    let backend = |pid: &i32| Backend {
        pid: *pid,
        started_us: (*pid).into(),
    };
    pids.iter().map(backend).collect()
}

/// These sessions, registered at token 1.
pub(crate) fn registered(backends: Vec<Backend>) -> Vec<Registered> {
    let register = |backend| Registered {
        backend,
        token: Token::MIN,
        incarnation: Incarnation::FIRST,
        since: 0,
    };
    backends.into_iter().map(register).collect()
}
