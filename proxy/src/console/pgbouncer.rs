//! Tables of pgbouncer 1.21, under its names, for programs that read its console. A column without a fact in this
//! proxy is left out, never invented.
//!
//! Source: <https://www.pgbouncer.org/usage.html#show-commands>

use std::collections::{BTreeMap, BTreeSet};

use pgpalisade_fence::readable::without_controls;
use pgpalisade_logins::ClientAddr;
use pgpalisade_server::client_table::{ClientEntry, ClientState, Encryption, Facts as ClientFacts};
use pgpalisade_server::hosts::UpstreamAddr;
use pgpalisade_server::pause::Traffic;

use super::Facts;
use super::table::{Cell, Row, Rows, Table};
use crate::config::ShownKey;
use crate::process::memory;

pub(super) const TABLES: [Table; 9] = [
    Table {
        name: "CLIENTS",
        help: "connections of clients",
        columns: "\
            type text, user text, database text, state text, addr text, port int8, \
            connect_time text, remote_pid int8, tls text, application_name text, id int8",
        rows: Rows::Known(clients),
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
            current_connections int8, paused int8, disabled int8",
        rows: Rows::Known(databases),
    },
    Table {
        name: "LISTS",
        help: "counts of what the proxy holds",
        columns: "list text, items int8",
        rows: Rows::Known(lists),
    },
    Table {
        name: "MEM",
        help: "memory of the process, in bytes",
        columns: "name text, memtotal int8",
        rows: Rows::Known(mem),
    },
    Table {
        name: "POOLS",
        help: "sessions by database and user",
        columns: "\
            database text, user text, cl_active int8, cl_waiting int8, cl_active_cancel_req int8, \
            cl_waiting_cancel_req int8, sv_active int8, sv_active_cancel int8, \
            sv_being_canceled int8, sv_idle int8, sv_used int8, sv_tested int8, sv_login int8, \
            maxwait int8, maxwait_us int8, pool_mode text",
        rows: Rows::Known(pools),
    },
    Table {
        name: "SERVERS",
        help: "connections to PostgreSQL, each with the id of its client",
        columns: "\
            type text, user text, database text, state text, addr text, port int8, \
            connect_time text, remote_pid int8, application_name text, id int8",
        rows: Rows::Known(servers),
    },
    Table {
        name: "STATS",
        help: "sums since the start, over all databases",
        columns: "\
            database text, total_server_assignment_count int8, total_query_count int8, \
            total_received int8",
        rows: Rows::Known(stats),
    },
    Table {
        name: "VERSION",
        help: "the version",
        columns: "version text",
        rows: Rows::Known(version),
    },
];

/// pgbouncer's name for sessions that keep their server connection.
const POOL_MODE: &str = "session";

fn authenticated(facts: &ClientFacts) -> Option<(String, String)> {
    let label = facts
        .label
        .as_ref()
        .filter(|label| label.is_authenticated())?;
    Some((
        without_controls(&label.database),
        without_controls(&label.user),
    ))
}

fn connect_time(entry: &ClientEntry) -> Cell {
    let time = jiff::Timestamp::try_from(entry.since);
    time.map_or(Cell::Null, |time| {
        time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string().into()
    })
}

fn version(_: &Facts) -> Vec<Row> {
    let version = concat!("pgpalisade ", env!("CARGO_PKG_VERSION"));
    vec![vec![version.into()]]
}

fn clients(facts: &Facts) -> Vec<Row> {
    let row = |entry: &ClientEntry| {
        let client = entry.facts();
        let label = client.label.as_deref();
        let (addr, port) = match client.client_addr {
            ClientAddr::Tcp(address) => (address.ip().to_string(), address.port()),
            ClientAddr::Local => ("unix".to_owned(), 0),
        };
        vec![
            "C".into(),
            label.map(|label| label.user.as_str()).into(),
            label.map(|label| label.database.as_str()).into(),
            match entry.state() {
                ClientState::LoggingIn => "login".into(),
                ClientState::Session(_) | ClientState::Streaming => "active".into(),
            },
            addr.into(),
            Cell::Number(port.into()),
            connect_time(entry),
            label
                .and_then(|label| label.backend_pid)
                .map(|pid| Cell::Number(pid.into()))
                .into(),
            match client.encryption {
                Encryption::Tls => "TLS".into(),
                Encryption::None => "".into(),
            },
            label
                .and_then(|label| label.application_name.as_deref())
                .into(),
            entry.id.into(),
        ]
    };
    let all = facts.shared.connected.all();
    all.iter().map(|entry| row(entry)).collect()
}

fn primary(facts: &Facts) -> (Cell, Cell) {
    let primary = facts.shared.takeover.primary();
    let host = primary.map(|primary| primary.place.host);
    match host.and_then(|host| facts.shared.servers.upstream.all().get(host)) {
        None => (Cell::Null, Cell::Null),
        Some(UpstreamAddr::Tcp { host, port }) => {
            (host.as_str().into(), Cell::Number((*port).into()))
        }
        Some(UpstreamAddr::Unix(path)) => (path.display().to_string().into(), Cell::Null),
    }
}

fn servers(facts: &Facts) -> Vec<Row> {
    // A session ends when its server is deposed.
    let (addr, port) = primary(facts);
    let row = |entry: &ClientEntry| {
        let label = entry.facts().label?;
        Some(vec![
            "S".into(),
            label.user.as_str().into(),
            label.database.as_str().into(),
            "active".into(),
            addr.clone(),
            port.clone(),
            connect_time(entry),
            Cell::Number(label.backend_pid?.into()),
            label.application_name.as_deref().into(),
            entry.id.into(),
        ])
    };
    let all = facts.shared.connected.all();
    all.iter().filter_map(|entry| row(entry)).collect()
}

fn counted(facts: &Facts) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for entry in facts.shared.connected.all() {
        if let Some(pool) = authenticated(&entry.facts()) {
            *counts.entry(pool).or_default() += 1;
        }
    }
    counts
}

fn pools(facts: &Facts) -> Vec<Row> {
    let zero = || Cell::Number(0);
    let row = |((database, user), sessions): ((String, String), usize)| {
        let mut row: Row = vec![database.into(), user.into(), sessions.into()];
        row.extend([zero(), zero(), zero()]);
        row.push(sessions.into());
        row.extend(std::iter::repeat_with(zero).take(8));
        row.push(POOL_MODE.into());
        row
    };
    counted(facts).into_iter().map(row).collect()
}

fn databases(facts: &Facts) -> Vec<Row> {
    let (host, port) = primary(facts);
    let paused = match facts.shared.pause.traffic() {
        Traffic::Flows => 0,
        Traffic::Held => 1,
    };
    let mut sessions: BTreeMap<String, usize> = BTreeMap::new();
    for ((database, _), count) in counted(facts) {
        *sessions.entry(database).or_default() += count;
    }
    let row = |(database, count): (String, usize)| {
        vec![
            database.clone().into(),
            host.clone(),
            port.clone(),
            database.into(),
            Cell::Null,
            POOL_MODE.into(),
            count.into(),
            Cell::Number(paused),
            Cell::Number(0),
        ]
    };
    sessions.into_iter().map(row).collect()
}

fn lists(facts: &Facts) -> Vec<Row> {
    let pools = counted(facts);
    let distinct = |part: fn(&(String, String)) -> &String| {
        let names: BTreeSet<&String> = pools.keys().map(part).collect();
        names.len()
    };
    let sessions: usize = pools.values().sum();
    let connected = facts.shared.connected.count();
    [
        ("databases", distinct(|(database, _)| database)),
        ("users", distinct(|(_, user)| user)),
        ("pools", pools.len()),
        ("used_clients", sessions),
        ("login_clients", connected.saturating_sub(sessions)),
        ("used_servers", sessions),
    ]
    .map(|(list, items)| vec![list.into(), items.into()])
    .into()
}

fn config(facts: &Facts) -> Vec<Row> {
    let row = |key: &ShownKey| {
        vec![
            key.name.into(),
            key.value.clone().into(),
            key.default.into(),
            // A file named by a key may be read again; another value needs a restart.
            "no".into(),
        ]
    };
    facts.settings.iter().map(row).collect()
}

fn stats(facts: &Facts) -> Vec<Row> {
    let totals = facts.shared.metrics.totals();
    vec![vec![
        "*".into(),
        totals.sessions.into(),
        totals.statements.into(),
        totals.received.into(),
    ]]
}

fn mem(_: &Facts) -> Vec<Row> {
    let Some((resident, address_space)) = memory() else {
        return Vec::new();
    };
    [("resident", resident), ("address_space", address_space)]
        .map(|(name, bytes)| vec![name.into(), Cell::Number(bytes as i64)])
        .into()
}
