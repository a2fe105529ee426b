//! Server connections: the key `pool` and the table `[backends]`.

use std::time::Duration;

use pgpalisade_server::pooling::{BackendLimits, Pool, Reset};

use super::key::Key;
use super::ready::{count, time};
use super::values::Values;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lending {
    Session,
    Transaction,
}

const LENDING: [(&str, Lending); 2] = [
    ("session", Lending::Session),
    ("transaction", Lending::Transaction),
];

const RESET: [(&str, Reset); 2] = [("always", Reset::Always), ("auto", Reset::Auto)];

/// More than PostgreSQL takes: its `MAX_BACKENDS`.
const BACKENDS_MAX: usize = 262_143;

pub(super) fn read(values: &mut Values<'_>) -> Option<Pool> {
    let seconds = Duration::from_secs;
    let lending = values.choice(Key::Pool, &LENDING);
    let max = values.last(Key::BackendsMax, |text| count(text, 1..=BACKENDS_MAX));
    let leaders = values.last(Key::BackendsLeaders, |text| count(text, 0..=BACKENDS_MAX));
    let wait = values.last(Key::BackendsWait, |text| {
        time(text, Duration::ZERO, seconds(600))
    });
    let idle = values.last(Key::BackendsIdle, |text| {
        time(text, seconds(1), seconds(24 * 3600))
    });
    let lifetime = values.last(Key::BackendsLifetime, |text| {
        time(text, seconds(60), seconds(168 * 3600))
    });
    let pinned = values.last(Key::BackendsPinned, |text| count(text, 0..=BACKENDS_MAX));
    let sessions = values.last(Key::BackendsSessions, |text| count(text, 0..=BACKENDS_MAX));
    let reset = values.choice(Key::BackendsReset, &RESET);
    let limits = BackendLimits {
        max: max?,
        leaders: leaders?,
        wait: wait?,
        idle: idle?,
        lifetime: lifetime?,
        pinned: pinned?,
        sessions: sessions?,
        reset: reset?,
    };
    if limits.leaders >= limits.max.get() {
        let (leaders, max) = (limits.leaders, limits.max);
        values.refuse(format!(
            "backends.leaders is {leaders}, and backends.max is {max}: leave at least one server connection for \
             clients without a token"
        ));
        return None;
    }
    match lending? {
        Lending::Session => Some(Pool::Session),
        Lending::Transaction => Some(Pool::Transaction(limits)),
    }
}
