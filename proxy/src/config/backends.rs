//! Server connections: the key `pool` and the table `[backends]`.

use std::time::Duration;

use pgpalisade_policies::PoolMode;
use pgpalisade_server::pooling::{BackendLimits, Pool, Reset};

use super::key::Key;
use super::values::{SECOND, Values, minutes};

const LENDING: [(&str, PoolMode); 2] = [
    ("session", PoolMode::Session),
    ("transaction", PoolMode::Transaction),
];

const RESET: [(&str, Reset); 2] = [("always", Reset::Always), ("auto", Reset::Auto)];

/// More than PostgreSQL takes: its `MAX_BACKENDS`.
const BACKENDS_MAX: usize = 262_143;

/// Keys that mean nothing unless clients share server connections: no rule and no listener lets them.
const KEYS: [Key; 8] = [
    Key::BackendsMax,
    Key::BackendsLeaders,
    Key::BackendsWait,
    Key::BackendsIdle,
    Key::BackendsLifetime,
    Key::BackendsPinned,
    Key::BackendsSessions,
    Key::BackendsReset,
];

pub(super) fn read(values: &mut Values<'_>) -> Option<Pool> {
    let lending = values.choice(Key::Pool, &LENDING)?;
    let hours = |hours: u64| minutes(60 * hours);
    let mut limits = BackendLimits {
        max: values.count(Key::BackendsMax, 1..=BACKENDS_MAX)?,
        leaders: values.count(Key::BackendsLeaders, 0..=BACKENDS_MAX)?,
        wait: values.time(Key::BackendsWait, Duration::ZERO..=minutes(10))?,
        idle: values.time(Key::BackendsIdle, SECOND..=hours(24))?,
        lifetime: values.time(Key::BackendsLifetime, minutes(1)..=hours(168))?,
        pinned: values.count(Key::BackendsPinned, 0..=BACKENDS_MAX)?,
        sessions: values.count(Key::BackendsSessions, 0..=BACKENDS_MAX)?,
        reset: values.choice(Key::BackendsReset, &RESET)?,
    };
    if lending == PoolMode::Session
        && let Some(key) = KEYS.into_iter().find(|key| values.is_set(*key))
    {
        values.refuse(format!(
            "{} is set, but pool is \"session\", and clients share no server connections: write pool = \
             \"transaction\", or remove the keys of [backends]",
            key.spec().name
        ));
        return None;
    }
    if limits.leaders >= limits.max.get() {
        let (leaders, max) = (limits.leaders, limits.max);
        values.refuse(format!(
            "backends.leaders is {leaders}, and backends.max is {max}: leave at least one server connection for \
             clients without a token"
        ));
        return None;
    }
    // Of several for clients without a token, one is left for the others.
    let readers = limits.max.get() - limits.leaders;
    limits.pinned = limits.pinned.min((readers - 1).max(1));
    Some(match lending {
        PoolMode::Session => Pool::Session,
        PoolMode::Transaction => Pool::Transaction(limits),
    })
}
