//! Looks of a client for leftovers.

use super::conversation::{Cycle, Kind};

/// Settings in which a shared server connection may differ from a direct one: the proxy's own, and those of the socket.
const SETTINGS: &str = "
    SELECT string_agg(concat(name, '=', setting, '/', reset_val), E'\\n') FROM pg_settings
    WHERE name <> ALL ('{default_transaction_read_only,transaction_read_only,tcp_keepalives_count,
        tcp_keepalives_idle,tcp_keepalives_interval,tcp_user_timeout}')";

/// What the look at prepared statements says of one that a client prepared by the protocol.
pub(super) const OWN_STATEMENT: &str = "SELECT.'%-f";

const LOOKS: [(Kind, &str); 19] = [
    (Kind::Look, SETTINGS),
    // One row for each: what was left unseen may be gone, and the other not.
    (
        Kind::Look,
        "SELECT unnest(ARRAY[current_user, session_user, current_setting('role'), current_schemas(false)::text])",
    ),
    // A setting with a dot that was reset is empty, not NULL.
    (
        Kind::Look,
        "SELECT coalesce(current_setting('app.name', true), '')",
    ),
    (
        Kind::Token,
        "SELECT coalesce(current_setting('fencing.token', true), '')",
    ),
    // A statement that is missing there is parsed when it is used, and one that was replaced or closed elsewhere may
    // be there. The front of its text says whose it is.
    (
        Kind::Loose,
        "SELECT DISTINCT concat_ws('-', left(replace(statement, ' ', '.'), 9), from_sql) FROM pg_prepared_statements",
    ),
    (Kind::Look, "SELECT name FROM pg_cursors ORDER BY 1"),
    (Kind::Look, "SELECT pg_listening_channels() ORDER BY 1"),
    (
        Kind::Look,
        "SELECT concat_ws('-', objid, mode) FROM pg_locks WHERE pid = pg_backend_pid() AND objid > 0 ORDER BY 1",
    ),
    (
        Kind::Look,
        "SELECT relname FROM pg_class WHERE relnamespace = pg_my_temp_schema() ORDER BY 1",
    ),
    (
        Kind::Look,
        "SELECT proname FROM pg_proc WHERE pronamespace = pg_my_temp_schema() ORDER BY 1",
    ),
    (Kind::Loose, "SELECT lastval() > 0"),
    (Kind::Loose, "SELECT currval('public.counter') > 0"),
    (Kind::Random, "SELECT random()"),
    (Kind::Plain, "EXECUTE sp"),
    (Kind::Plain, "FETCH sc"),
    (Kind::Plain, "TABLE st"),
    (
        Kind::Plain,
        "SELECT to_regprocedure('pg_temp.sf()') IS NULL",
    ),
    (Kind::Statement, "EXECUTE s"),
    (Kind::Plain, "SELECT 1"),
];

pub fn pid() -> Cycle {
    Cycle::query(Kind::Pid, "SELECT pg_backend_pid()")
}

pub fn all() -> Vec<Cycle> {
    let looks = LOOKS.iter();
    looks.map(|(kind, sql)| Cycle::query(*kind, *sql)).collect()
}
