//! PgBouncer's configuration as one of pgpalisade. What has no equal is named with its reason.
//!
//! Source: <https://www.pgbouncer.org/config.html>, version 1.25.

mod ini;
mod no_equal;

use std::ops::RangeInclusive;
use std::time::Duration;

use super::duration::show;
use super::key::{Key, Sample, TomlType};
use ini::{Ini, Pairs};

/// PgBouncer's own default.
const AUTH_QUERY: &str = "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END FROM \
                          pg_authid WHERE rolname=$1 AND rolcanlogin";

/// Keys that [`Translation`] reads.
const READ: &str = "listen_addr listen_port unix_socket_dir pool_mode default_pool_size reserve_pool_size \
    max_db_connections query_wait_timeout server_idle_timeout server_lifetime max_client_conn client_login_timeout \
    tcp_keepalive tcp_keepidle auth_type auth_file auth_user auth_query client_tls_sslmode client_tls_cert_file \
    client_tls_key_file client_tls_ca_file server_tls_sslmode server_tls_ca_file server_tls_cert_file \
    server_tls_key_file";

struct Translation<'a> {
    ini: &'a Ini,
    keys: Vec<(Key, Vec<String>)>,
    notes: Vec<String>,
}

/// Translates a file.
///
/// # Errors
///
/// The line that is not one of PgBouncer's.
pub(crate) fn from_pgbouncer(text: &str) -> Result<String, String> {
    let ini = ini::parse(text)?;
    let mut all = Translation {
        ini: &ini,
        keys: Vec::new(),
        notes: Vec::new(),
    };
    all.listen();
    all.upstream();
    all.tls();
    all.logins();
    all.pool();
    all.limits();
    all.rest();
    Ok(all.written())
}

impl Translation<'_> {
    /// A value that is not empty.
    fn get(&self, name: &str) -> Option<&str> {
        let value = self.ini.settings.get(name)?;
        (!value.is_empty()).then_some(value)
    }

    /// One of a few words, in lower case.
    fn word(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_ascii_lowercase)
    }

    fn set(&mut self, key: Key, value: impl Into<String>) {
        self.keys.push((key, vec![value.into()]));
    }

    fn note(&mut self, name: &str, why: &str) {
        self.notes.push(format!("{name}: {why}"));
    }

    fn number(&mut self, name: &str, default: usize) -> usize {
        let number = self.get(name).map(str::parse);
        match number {
            None => default,
            Some(Ok(number)) => number,
            Some(Err(_)) => {
                self.note(name, "is not a number");
                default
            }
        }
    }

    /// Sets a key to the text of the setting, if there is one.
    fn copy(&mut self, key: Key, name: &str) {
        let text = self.get(name).map(str::to_owned);
        self.keys.extend(text.map(|text| (key, vec![text])));
    }

    /// A time in seconds within its bounds; `zero` stands for 0.
    fn time(
        &mut self,
        key: Key,
        name: &str,
        default: u64,
        allowed: &RangeInclusive<u64>,
        zero: u64,
    ) {
        let seconds = self.get(name).map_or(Ok(default as f64), str::parse);
        let asked = seconds
            .ok()
            .and_then(|s| Duration::try_from_secs_f64(s).ok());
        let [least, most] = [allowed.start(), allowed.end()].map(|s| Duration::from_secs(*s));
        let time = match asked {
            Some(Duration::ZERO) => Duration::from_secs(zero),
            Some(time) => time.clamp(least, most),
            None => Duration::from_secs(default),
        };
        if asked != Some(time) {
            let why = format!("is {} here, the nearest that is possible", show(time));
            self.note(name, &why);
        }
        self.set(key, show(time));
    }

    fn listen(&mut self) {
        let port = self.number("listen_port", 6432);
        let mut addresses = Vec::new();
        for host in self.get("listen_addr").unwrap_or_default().split(',') {
            match host.trim() {
                "" => {}
                "*" => addresses.extend([format!("0.0.0.0:{port}"), format!("[::]:{port}")]),
                "localhost" => addresses.push(format!("127.0.0.1:{port}")),
                host if host.parse::<std::net::Ipv6Addr>().is_ok() => {
                    addresses.push(format!("[{host}]:{port}"));
                }
                host => addresses.push(format!("{host}:{port}")),
            }
        }
        let directory = self.ini.settings.get("unix_socket_dir");
        let directory = directory.map_or("/tmp", String::as_str);
        if directory.starts_with('/') {
            addresses.push(format!("{directory}:{port}"));
        }
        self.keys.push((Key::Listen, addresses));
    }

    fn upstream(&mut self) {
        let first = self.first_server();
        for (name, pairs) in &self.ini.databases {
            if first != Some(self.server(pairs)) {
                let why = "is on another server: each cluster needs a proxy of its own";
                self.notes.push(format!("[databases] {name}: {why}"));
            }
            self.database(name, pairs);
        }
        let Some((host, port)) = first else {
            return self.note("[databases]", "is empty: set upstream");
        };
        if host.starts_with('/') {
            let address = format!("postgres:///?host={}&port={port}", escaped(&host));
            return self.set(Key::Upstream, address);
        }
        let one = format!(":{port}");
        let port = if port.contains(',') { "" } else { &one };
        let written = |host: &str| match host.parse::<std::net::Ipv6Addr>() {
            Ok(host) => format!("[{host}]{port}"),
            Err(_) => format!("{host}{port}"),
        };
        let hosts: Vec<String> = host.split(',').map(written).collect();
        let mode = self.word("server_tls_sslmode");
        let mode = match mode.as_deref() {
            None | Some("allow") => "prefer",
            Some(mode) => mode,
        };
        let mut address = format!("postgres://{}?sslmode={mode}", hosts.join(","));
        for (parameter, name) in [
            ("sslrootcert", "server_tls_ca_file"),
            ("sslcert", "server_tls_cert_file"),
            ("sslkey", "server_tls_key_file"),
        ] {
            let counts = parameter != "sslrootcert" || mode.starts_with("verify");
            if let Some(file) = self.get(name).filter(|_| mode != "disable" && counts) {
                address.push_str(&format!("&{parameter}={}", escaped(file)));
            }
        }
        self.set(Key::Upstream, address);
    }

    /// Host and port.
    fn server(&self, pairs: &Pairs) -> (String, String) {
        let get = |key: &str, default: &str| pairs.get(key).map_or(default, |text| text).to_owned();
        let socket = self.get("unix_socket_dir").unwrap_or("/tmp");
        (get("host", socket), get("port", "5432"))
    }

    fn first_server(&self) -> Option<(String, String)> {
        let first = self.ini.databases.first();
        first.map(|(_, pairs)| self.server(pairs))
    }

    fn database(&mut self, name: &str, pairs: &Pairs) {
        for key in pairs.keys() {
            match &**key {
                "host" | "port" | "pool_size" | "reserve_pool" | "reserve_pool_size"
                | "max_db_connections" => {}
                "dbname" if pairs.get(key).is_some_and(|other| other == name) => {}
                _ => {
                    let why = no_equal::why(no_equal::DATABASE, key);
                    self.notes.push(format!("[databases] {name}: {key}: {why}"));
                }
            }
        }
    }

    fn tls(&mut self) {
        let mode = self.word("client_tls_sslmode");
        let mode = match mode.as_deref().unwrap_or("disable") {
            "disable" => return self.set(Key::TlsMode, "off"),
            "allow" | "prefer" => "allow",
            "require" => "require",
            _ => {
                self.set(Key::TlsClientCertificates, "required");
                "require"
            }
        };
        self.set(Key::TlsMode, mode);
        self.copy(Key::TlsCertificate, "client_tls_cert_file");
        self.copy(Key::TlsKeyFile, "client_tls_key_file");
        self.copy(Key::TlsClientCa, "client_tls_ca_file");
    }

    fn logins(&mut self) {
        let kind = self.word("auth_type").unwrap_or_else(|| "md5".into());
        let named = format!("auth_type = {kind}");
        match &*kind {
            "scram-sha-256" => {}
            "md5" | "plain" => self.note(
                &named,
                "PostgreSQL must have SCRAM-SHA-256 verifiers for all users, and so must auth_file: docs/tls.md",
            ),
            "any" | "trust" => {
                let why = "logins are relayed to PostgreSQL; with pool = \"transaction\" it must ask for nothing \
                           (trust, peer), or use auth = \"scram\"";
                self.note(&named, why);
                return self.set(Key::Auth, "relay");
            }
            "cert" => self.note(
                &named,
                "clients log in by SCRAM, too; rules of the policy say whose certificate may be which user (cn)",
            ),
            _ => self.note(
                &named,
                "clients log in by SCRAM instead: PostgreSQL's own pg_hba.conf decides with auth = \"relay\"",
            ),
        }
        self.set(Key::Auth, "scram");
        if self.get("auth_user").is_none() && self.get("auth_file").is_some() {
            return self.copy(Key::AuthFile, "auth_file");
        }
        let query = self.get("auth_query").unwrap_or(AUTH_QUERY).to_owned();
        self.set(Key::AuthQuery, query);
        let why = "the query runs as the role of control, in its database and with search_path = pg_catalog (so write \
                   the schema of a function: docs/tls.md); auth_file is not used beside it";
        self.note("auth_user", why);
    }

    fn pool(&mut self) {
        let mode = self.word("pool_mode");
        let mode = match mode.as_deref() {
            Some("statement") => {
                self.note("pool_mode = statement", "is transaction here");
                "transaction"
            }
            Some("transaction") => "transaction",
            _ => "session",
        };
        self.set(Key::Pool, mode);
        if mode == "session" {
            let why = "each client has a server connection of its own: connections.max limits both";
            return self.note("pool_mode = session", why);
        }
        let size = self.number("default_pool_size", 20);
        let reserve = self.number("reserve_pool_size", 0);
        let sum = usize::saturating_add;
        let most = self.number("max_db_connections", 0);
        let of = |pairs: &Pairs, key: &str, default: usize| {
            let own = pairs.get(key).and_then(|text| text.parse().ok());
            own.unwrap_or(default)
        };
        let first = self.first_server();
        let databases = self.ini.databases.iter();
        let databases = databases.filter(|(_, pairs)| first == Some(self.server(pairs)));
        let sizes = databases.map(|(_, pairs)| match of(pairs, "max_db_connections", most) {
            0 => {
                let reserve = of(pairs, "reserve_pool", reserve);
                sum(
                    of(pairs, "pool_size", size),
                    of(pairs, "reserve_pool_size", reserve),
                )
            }
            most => most,
        });
        let max = match sizes.fold(0, sum) {
            0 => sum(size, reserve).max(1),
            all => all,
        };
        self.set(Key::BackendsMax, max.to_string());
        self.set(Key::BackendsLeaders, (max - 1).min(2).to_string());
        let names = "default_pool_size, reserve_pool_size, max_db_connections";
        let why = "backends.max counts all server connections of all users; here it is the sum over the databases";
        self.note(names, why);
    }

    fn limits(&mut self) {
        use Key::{BackendsIdle, BackendsLifetime, BackendsWait, LoginTimeout, TcpKeepalive};
        const DAY: u64 = 24 * 3600;
        let of_pool = [
            (BackendsWait, "query_wait_timeout", 120, 0..=600, 600),
            (BackendsIdle, "server_idle_timeout", 600, 1..=DAY, DAY),
            (BackendsLifetime, "server_lifetime", 3600, 60..=7 * DAY, 60),
        ];
        let is_pool = self.keys.iter().any(|(key, _)| *key == Key::BackendsMax);
        for (key, name, default, allowed, zero) in of_pool.into_iter().filter(|_| is_pool) {
            self.time(key, name, default, &allowed, zero);
        }
        let clients = self.number("max_client_conn", 100).max(1);
        self.set(Key::ConnectionsMax, clients.to_string());
        self.time(LoginTimeout, "client_login_timeout", 60, &(1..=600), 600);
        if self.get("tcp_keepalive") == Some("0") {
            self.set(TcpKeepalive, "off");
        } else if self.get("tcp_keepidle").is_some() {
            self.time(TcpKeepalive, "tcp_keepidle", 60, &(1..=7200), 60);
        }
    }

    /// Names what has no equal.
    fn rest(&mut self) {
        for (name, value) in &self.ini.settings {
            if READ.split_whitespace().any(|read| read == name) {
                continue;
            }
            let why = no_equal::why(no_equal::SETTINGS, name);
            // It may be a secret.
            let value = match name.starts_with("auth") || why == no_equal::UNKNOWN {
                true => String::new(),
                false => format!(" = {value}"),
            };
            self.notes.push(format!("{name}{value}: {why}"));
        }
        let why = "settings of a user are rules of the policy, such as pool = \"session\" (set backends.sessions); \
                   limits are for all";
        for (name, _) in &self.ini.users {
            self.notes.push(format!("[users] {name}: {why}"));
        }
        for (name, _) in &self.ini.peers {
            let why = "a cancel request must reach the proxy of its client";
            self.notes.push(format!("[peers] {name}: {why}"));
        }
    }

    fn written(&self) -> String {
        let mut text = String::from("# Not in PgBouncer: docs/start.md\n");
        for key in [Key::Control, Key::Authority] {
            if let Sample::Set(value) = key.spec().sample {
                text.push_str(&line(key, &[value.to_owned()]));
            }
        }
        text.push_str(&line(Key::Console, &["/run/pgpalisade".to_owned()]));
        text.push_str("\n# As in PgBouncer\n");
        for (key, values) in &self.keys {
            text.push_str(&line(*key, values));
        }
        text.push_str("\n# No equivalent, or only a similar one\n");
        for note in &self.notes {
            text.push_str(&format!("# - {note}\n"));
        }
        text
    }
}

/// A line of the configuration. Strings of JSON are strings of TOML.
fn line(key: Key, values: &[String]) -> String {
    let quoted = |value: &String| serde_json::Value::from(&**value).to_string();
    let value = match key.spec().shape {
        TomlType::Number => values.concat(),
        TomlType::List => {
            let values: Vec<String> = values.iter().map(quoted).collect();
            format!("[{}]", values.join(", "))
        }
        _ => quoted(&values.concat()),
    };
    format!("{} = {value}\n", key.spec().name)
}

/// A value in the query of a URL.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let each = text.bytes().map(|byte| match byte {
        byte if plain(byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    each.collect()
}

#[cfg(test)]
mod tests;
