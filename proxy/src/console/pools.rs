//! Clients and server connections in pgbouncer's tables, and how they are linked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pgpalisade_fence::readable::without_controls;
use pgpalisade_logins::ClientAddr;
use pgpalisade_policies::PoolMode;
use pgpalisade_server::client_table::{ClientEntry, ClientState, Encryption};
use pgpalisade_server::hosts::UpstreamAddr;
use pgpalisade_server::metrics::ServerState;
use pgpalisade_server::pause::Traffic;
use pgpalisade_server::pooling::view::{LoginNames, Opened, PoolView, SharedServer};
use serde_json::Value;

use super::pausing::stuck;
use super::table::{ANSWER_WITHIN, Row};
use super::{ConsoleError, Facts};

/// Clients and server connections at one moment.
pub(super) struct Scene {
    /// Host and port of the primary.
    primary: (Value, Value),
    traffic: Traffic,
    mode: PoolMode,
    clients: Vec<Arc<ClientEntry>>,
    pools: PoolView,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PoolKey {
    database: String,
    user: String,
    mode: PoolMode,
}

#[derive(Debug, Default)]
struct Sums {
    cl_active: usize,
    cl_waiting: usize,
    sv_active: usize,
    sv_idle: usize,
    sv_tested: usize,
    sv_login: usize,
    sv_closing: usize,
    longest_wait: Duration,
}

impl Sums {
    const fn servers(&self) -> usize {
        self.sv_active + self.sv_idle + self.sv_tested + self.sv_login + self.sv_closing
    }

    const fn clients(&self) -> usize {
        self.cl_active + self.cl_waiting
    }
}

impl Scene {
    pub(super) async fn now(facts: &Facts) -> Result<Self, ConsoleError> {
        let shared = &facts.shared;
        let pools = tokio::time::timeout(ANSWER_WITHIN, shared.pooling.pools.view()).await;
        Ok(Self {
            primary: primary(facts),
            traffic: shared.pause.traffic(),
            mode: shared.pooling.mode(),
            pools: pools.map_err(|_| stuck())?,
            clients: shared.connected.all(),
        })
    }

    pub(super) fn clients(&self) -> Vec<Row> {
        let waits = self.pools.waits.iter();
        let waits: HashMap<u64, Duration> = waits.map(|wait| (wait.client, wait.waited)).collect();
        let row = |entry: &Arc<ClientEntry>| client_row(entry, waits.get(&entry.id).copied());
        self.clients.iter().map(row).collect()
    }

    /// Those of one client each, and the shared ones.
    pub(super) fn servers(&self) -> Vec<Row> {
        let own = self.clients.iter().filter_map(|entry| own_server(entry));
        let own = own.map(|server| self.server_row(&server));
        let shared = self.pools.servers.iter();
        own.chain(shared.map(|server| self.server_row(server)))
            .collect()
    }

    pub(super) fn pools(&self) -> Vec<Row> {
        let row = |(key, sums): (PoolKey, Sums)| {
            let (seconds, rest) = seconds(sums.longest_wait);
            // None of a client's cancel requests waits, and no server connection is idle for a check.
            let none = || Value::from(0);
            vec![
                key.database.into(),
                key.user.into(),
                sums.cl_active.into(),
                sums.cl_waiting.into(),
                none(),
                none(),
                sums.sv_active.into(),
                none(),
                none(),
                sums.sv_idle.into(),
                none(),
                sums.sv_tested.into(),
                sums.sv_login.into(),
                seconds,
                rest,
                key.mode.as_ref().into(),
            ]
        };
        self.sums().into_iter().map(row).collect()
    }

    pub(super) fn databases(&self) -> Vec<Row> {
        let (host, port) = self.primary.clone();
        let paused = match self.traffic {
            Traffic::Flows => 0,
            Traffic::Held => 1,
        };
        let mut databases: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for (key, sums) in self.sums() {
            let (servers, clients) = databases.entry(key.database).or_default();
            *servers += sums.servers();
            *clients += sums.clients();
        }
        let row = |(database, (servers, clients)): (String, (usize, usize))| {
            vec![
                database.clone().into(),
                host.clone(),
                port.clone(),
                database.into(),
                Value::Null,
                self.mode.as_ref().into(),
                servers.into(),
                clients.into(),
                paused.into(),
                0.into(),
            ]
        };
        databases.into_iter().map(row).collect()
    }

    pub(super) fn lists(&self) -> Vec<Row> {
        let pools = self.sums();
        let databases: BTreeSet<&String> = pools.keys().map(|key| &key.database).collect();
        let users: BTreeSet<&String> = pools.keys().map(|key| &key.user).collect();
        let sessions = self.clients.iter().filter_map(|entry| key_of(entry));
        let sessions = sessions.count();
        [
            ("databases", databases.len()),
            ("users", users.len()),
            ("pools", pools.len()),
            ("used_clients", sessions),
            ("login_clients", self.clients.len() - sessions),
            ("used_servers", pools.values().map(Sums::servers).sum()),
        ]
        .map(|(list, items)| vec![list.into(), items.into()])
        .into()
    }

    fn server_row(&self, server: &SharedServer) -> Row {
        // A session ends when its server is deposed.
        let (addr, port) = self.primary.clone();
        let pid = server.opened.map(|opened| opened.pid);
        vec![
            "S".into(),
            server.names.user.as_str().into(),
            server.names.database.as_str().into(),
            // pgbouncer's words, where it has one.
            match server.state {
                ServerState::Resetting => "tested".into(),
                ServerState::Opening => "new".into(),
                state => state.as_str().into(),
            },
            addr,
            port,
            server.opened.map(|opened| connect_time(opened.at)).into(),
            i64::from(server.is_leaving).into(),
            pid.map(server_ptr).into(),
            server.client.map(client_ptr).into(),
            pid.into(),
            server.names.application_name.as_deref().into(),
            server.client.into(),
            server.tokens.as_deref().into(),
        ]
    }

    fn sums(&self) -> BTreeMap<PoolKey, Sums> {
        let mut all: BTreeMap<PoolKey, Sums> = BTreeMap::new();
        let waiting: BTreeSet<u64> = self.pools.waits.iter().map(|wait| wait.client).collect();
        for entry in &self.clients {
            let Some(key) = key_of(entry) else { continue };
            let has_own = key.mode == PoolMode::Session && entry.server_pid().is_some();
            let sums = all.entry(key).or_default();
            sums.cl_active += usize::from(!waiting.contains(&entry.id));
            sums.sv_active += usize::from(has_own);
        }
        for wait in &self.pools.waits {
            let sums = all.entry(shared_key(&wait.names)).or_default();
            sums.cl_waiting += 1;
            sums.longest_wait = sums.longest_wait.max(wait.waited);
        }
        for server in &self.pools.servers {
            let sums = all.entry(shared_key(&server.names)).or_default();
            *match server.state {
                ServerState::Active => &mut sums.sv_active,
                ServerState::Idle => &mut sums.sv_idle,
                ServerState::Resetting => &mut sums.sv_tested,
                ServerState::Opening => &mut sums.sv_login,
                ServerState::Closing => &mut sums.sv_closing,
            } += 1;
        }
        all
    }
}

/// The pool of an authenticated client.
fn key_of(entry: &ClientEntry) -> Option<PoolKey> {
    let facts = entry.facts();
    let label = facts.label.filter(|label| label.is_authenticated())?;
    Some(PoolKey {
        database: without_controls(&label.database),
        user: without_controls(&label.user),
        mode: facts.pool_mode,
    })
}

fn shared_key(names: &LoginNames) -> PoolKey {
    PoolKey {
        database: without_controls(&names.database),
        user: without_controls(&names.user),
        mode: PoolMode::Transaction,
    }
}

fn client_row(entry: &ClientEntry, wait: Option<Duration>) -> Row {
    let client = entry.facts();
    let label = client.label.as_deref();
    let (addr, port) = match client.client_addr {
        ClientAddr::Tcp(address) => (address.ip().to_string(), address.port()),
        ClientAddr::Local => ("unix".to_owned(), 0),
    };
    let state = match (wait, entry.state()) {
        (Some(_), _) => "waiting",
        (None, ClientState::LoggingIn) => "login",
        (None, _) => "active",
    };
    let (seconds, rest) = seconds(wait.unwrap_or_default());
    vec![
        "C".into(),
        label.map(|label| label.user.as_str()).into(),
        label.map(|label| label.database.as_str()).into(),
        state.into(),
        addr.into(),
        port.into(),
        connect_time(entry.since),
        seconds,
        rest,
        client_ptr(entry.id),
        entry.server_pid().map(server_ptr).into(),
        entry.server_pid().into(),
        match client.encryption {
            Encryption::Tls => "TLS".into(),
            Encryption::None => "".into(),
        },
        label
            .and_then(|label| label.application_name.as_deref())
            .into(),
        entry.id.into(),
        entry.leftover().map(|left| left.as_str()).into(),
    ]
}

/// A server connection of one client, as the shared ones are shown.
fn own_server(entry: &ClientEntry) -> Option<SharedServer> {
    let facts = entry.facts();
    let label = facts.label?;
    if facts.pool_mode == PoolMode::Transaction {
        return None;
    }
    Some(SharedServer {
        names: LoginNames {
            user: label.user.clone(),
            database: label.database.clone(),
            application_name: label.application_name.clone(),
        },
        state: ServerState::Active,
        opened: Some(Opened {
            pid: entry.server_pid()?,
            at: entry.since,
        }),
        client: Some(entry.id),
        tokens: facts.tokens.map(|tokens| tokens.to_string().into()),
        is_leaving: false,
    })
}

/// A name for the column `ptr`, and for the `link` to it.
fn client_ptr(id: u64) -> Value {
    format!("c{id}").into()
}

fn server_ptr(pid: i32) -> String {
    format!("s{pid}")
}

/// Whole seconds, and the microseconds after them.
fn seconds(time: Duration) -> (Value, Value) {
    (time.as_secs().into(), time.subsec_micros().into())
}

fn connect_time(time: SystemTime) -> Value {
    let time = jiff::Timestamp::try_from(time);
    time.map_or(Value::Null, |time| {
        time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string().into()
    })
}

fn primary(facts: &Facts) -> (Value, Value) {
    let primary = facts.shared.takeover.primary();
    let host = primary.map(|primary| primary.place.host);
    match host.and_then(|host| facts.shared.servers.upstream.all().get(host)) {
        None => (Value::Null, Value::Null),
        Some(UpstreamAddr::Tcp { host, port }) => (host.as_str().into(), (*port).into()),
        Some(UpstreamAddr::Unix(path)) => (path.display().to_string().into(), Value::Null),
    }
}
