//! Tables of pgbouncer 1.25, under its names, for programs that read its console. A column without a fact in this
//! proxy is left out, never invented.
//!
//! Source: <https://www.pgbouncer.org/usage.html#show-commands>

use pgpalisade_policies::PoolMode;

use super::Facts;
use super::pools::Scene;
use super::table::{Row, Rows, Table};
use crate::config::{KEYS, KeySpec};

pub(super) const TABLES: [Table; 8] = [
    Table {
        name: "CLIENTS",
        help: "connections of clients",
        columns: "\
            type text, user text, database text, state text, addr text, port int8, \
            connect_time text, wait int8, wait_us int8, ptr text, link text, remote_pid int8, \
            tls text, application_name text, id int8, leftover text",
        rows: Rows::Scene(Scene::clients),
    },
    Table {
        name: "CONFIG",
        help: "the configuration, without passwords",
        columns: "key text, value text, default text, changeable text",
        rows: Rows::Known(config),
    },
    Table {
        name: "DATABASES",
        help: "databases that clients are connected to",
        columns: "\
            name text, host text, port int8, database text, force_user text, pool_mode text, \
            current_connections int8, current_client_connections int8, paused int8, \
            disabled int8",
        rows: Rows::Scene(Scene::databases),
    },
    Table {
        name: "LISTS",
        help: "counts of what the proxy holds",
        columns: "list text, items int8",
        rows: Rows::Scene(Scene::lists),
    },
    Table {
        name: "POOLS",
        help: "clients and server connections by database, user and mode",
        columns: "\
            database text, user text, cl_active int8, cl_waiting int8, cl_active_cancel_req int8, \
            cl_waiting_cancel_req int8, sv_active int8, sv_active_cancel int8, \
            sv_being_canceled int8, sv_idle int8, sv_used int8, sv_tested int8, sv_login int8, \
            maxwait int8, maxwait_us int8, pool_mode text",
        rows: Rows::Scene(Scene::pools),
    },
    Table {
        name: "SERVERS",
        help: "connections to PostgreSQL, each with the client that has it",
        columns: "\
            type text, user text, database text, state text, addr text, port int8, \
            connect_time text, close_needed int8, ptr text, link text, remote_pid int8, \
            application_name text, id int8, tokens text",
        rows: Rows::Scene(Scene::servers),
    },
    Table {
        name: "STATS",
        help: "sums since the start, over all databases",
        columns: "\
            database text, total_server_assignment_count int8, total_query_count int8, \
            total_received int8, total_wait_time int8",
        rows: Rows::Known(stats),
    },
    Table {
        name: "VERSION",
        help: "the version",
        columns: "version text",
        rows: Rows::Known(version),
    },
];

fn version(_: &Facts) -> Vec<Row> {
    let version = concat!("pgpalisade ", env!("CARGO_PKG_VERSION"));
    vec![vec![version.into()]]
}

fn config(facts: &Facts) -> Vec<Row> {
    let row = |spec: &&KeySpec| {
        vec![
            spec.name.into(),
            facts.settings.shown(spec.key).into(),
            spec.default().into(),
            // A file named by a key may be read again; another value needs a restart.
            "no".into(),
        ]
    };
    KEYS.iter().map(row).collect()
}

fn stats(facts: &Facts) -> Vec<Row> {
    let totals = facts.shared.metrics.totals();
    let assigned = match facts.shared.pooling.mode() {
        PoolMode::Session => totals.sessions,
        PoolMode::Transaction => totals.lent,
    };
    vec![vec![
        "*".into(),
        assigned.into(),
        totals.statements.into(),
        totals.received.into(),
        totals.waited_us.into(),
    ]]
}
