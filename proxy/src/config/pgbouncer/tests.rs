//! Files of PgBouncer, and what becomes of them.

use super::super::{Config, Environment, Flags, RawConfig};
use super::*;

/// Keys of the translated file, which must be a valid configuration.
#[track_caller]
fn valid(ini: &str) -> (String, RawConfig) {
    let text = from_pgbouncer(ini).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pgpalisade.toml");
    std::fs::write(&path, &text).unwrap();
    let flags = Flags {
        config_file: Some(path),
        values: Vec::new(),
    };
    let environment = Environment::from_pairs(std::iter::empty());
    let raw = RawConfig::collect(&flags, &environment);
    if let Err(errors) = Config::from_raw(raw.clone(), &environment) {
        panic!("{errors}\n{text}");
    }
    (text, raw)
}

const DATABASE: &str = "[databases]\napp = host=10.0.0.1\n[pgbouncer]\nauth_file = /u\n";

/// Lines of a file, divided by ` & `, and a key that they give its value.
const EQUALS: &str = "
=> listen = /tmp:6432
listen_addr = * => listen = 0.0.0.0:6432,[::]:6432,/tmp:6432
listen_addr = localhost, ::1 & listen_port = 7 & unix_socket_dir = => listen = 127.0.0.1:7,[::1]:7
=> upstream = postgres://10.0.0.1:5432?sslmode=prefer
server_tls_sslmode = verify-full & server_tls_ca_file = /a b \
    => upstream = postgres://10.0.0.1:5432?sslmode=verify-full&sslrootcert=/a%20b
=> pool = session
pool_mode = transaction => pool = transaction
pool_mode = statement => pool = transaction
pool_mode = transaction => backends.max = 20
pool_mode = transaction & default_pool_size = 5 & reserve_pool_size = 2 => backends.max = 7
pool_mode = transaction & max_db_connections = 50 => backends.max = 50
pool_mode = transaction & default_pool_size = 1 => backends.leaders = 0
pool_mode = transaction => backends.wait = 2min
pool_mode = transaction & query_wait_timeout = 0.5 => backends.wait = 500ms
pool_mode = transaction & query_wait_timeout = 0 => backends.wait = 10min
pool_mode = transaction & server_idle_timeout = 0 => backends.idle = 24h
pool_mode = transaction & server_lifetime = 10 => backends.lifetime = 1min
=> connections.max = 100
client_login_timeout = 15 => login_timeout = 15s
tcp_keepidle = 30 => tcp.keepalive = 30s
tcp_keepalive = 0 => tcp.keepalive = off
auth_type = scram-sha-256 => auth = scram
auth_type = scram-sha-256 => auth_file = /u
auth_user = a => auth_query = {query}
auth_user = a & auth_query = SELECT $1, 'x' => auth_query = SELECT $1, 'x'
auth_type = hba => auth = scram
auth_type = Trust => auth = relay
pool_mode = Session => pool = session
pool_mode = TRANSACTION => pool = transaction
server_tls_sslmode = Require & server_tls_ca_file = /a => upstream = postgres://10.0.0.1:5432?sslmode=require
client_tls_sslmode = Verify-Full & {tls} => tls.client_certificates = required
client_tls_sslmode = disable => tls.mode = off
client_tls_sslmode = prefer & {tls} => tls.mode = allow
client_tls_sslmode = require & {tls} => tls.certificate = /c
client_tls_sslmode = verify-ca & {tls} => tls.client_certificates = required";

#[test]
fn keys_have_these_equals() {
    let tls = "client_tls_cert_file = /c\nclient_tls_key_file = /k\nclient_tls_ca_file = /a\n";
    for row in EQUALS.lines().skip(1) {
        let row = row.replace("{query}", AUTH_QUERY).replace("{tls}", tls);
        let (ini, expect) = row.split_once("=> ").unwrap();
        let (key, expect) = expect.split_once(" = ").unwrap();
        let (text, raw) = valid(&format!("{DATABASE}{}", ini.replace(" & ", "\n")));
        let found = raw
            .texts(Key::by_name(key).unwrap().key)
            .unwrap_or_default();
        assert_eq!(found.join(","), expect, "{ini}\n{text}");
    }
}

#[test]
fn databases_are_one_cluster() {
    let ini = "[databases]\na = host=h1,h2 port=6000 dbname=a user=u password=secret\n\
               b = host=other pool_size=7 x=1\nc =\n\
               d = host=h1,h2 port=6000 pool_size=7\n[pgbouncer]\npool_mode = transaction\nauth_file = /u\n";
    let (text, raw) = valid(ini);
    assert_eq!(
        raw.text(Key::Upstream),
        Some("postgres://h1:6000,h2:6000?sslmode=prefer")
    );
    assert_eq!(raw.text(Key::BackendsMax), Some("27"));
    for part in [
        "[databases] b: is on another server",
        "[databases] c: is on another server",
        "[databases] a: user: clients log in as themselves",
        "[databases] a: password: clients log in as themselves",
        "[databases] b: x: is not known",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(
        !text.contains("secret") && !text.contains("a: dbname"),
        "{text}"
    );
    for (server, expect) in [
        ("", "postgres:///?host=/run/pg&port=5432"),
        ("host=::1", "postgres://[::1]:5432?sslmode=prefer"),
    ] {
        let ini = format!(
            "[databases]\na = {server}\n[pgbouncer]\nauth_file = /u\nunix_socket_dir = /run/pg\n"
        );
        assert_eq!(valid(&ini).1.text(Key::Upstream), Some(expect));
    }
}

/// Each key is read, or named with a reason; an unknown one is named too.
#[test]
fn nothing_is_lost_silently() {
    let rows = no_equal::rows(no_equal::SETTINGS);
    let known: Vec<&str> = rows.iter().flat_map(|(keys, _)| keys.split(' ')).collect();
    assert!(known.len() > 60, "{known:?}");
    let ini = format!("{DATABASE}{} = 1\nnonsense = 2\n", known.join(" = 1\n"));
    let ini = format!("{ini}[users]\nann = pool_mode=session\n[peers]\n1 = host=h\n");
    let (text, _) = valid(&ini);
    for name in known {
        let value = if name.starts_with("auth") { "" } else { " = 1" };
        let note = format!("\n# - {name}{value}: ");
        assert!(text.contains(&note), "{name}\n{text}");
        assert!(!READ.split_whitespace().any(|read| read == name), "{name}");
    }
    assert_eq!(text.matches("is not known").count(), 1, "{text}");
    for part in [
        "# - nonsense: is not known",
        "# - [users] ann",
        "# - [peers] 1",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(from_pgbouncer("x").unwrap_err().starts_with("line 1: "));
}
