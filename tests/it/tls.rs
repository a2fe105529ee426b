//! TLS on both legs, with real certificates: libpq, a client by hand, and PostgreSQL.

mod client_leg;
mod findings;
mod names;
mod server_leg;

use std::process::Output;

use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::programs::{feed, program};
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::tls::{Authority, Pair};
use pgpalisade_test_servers::wire::Endpoint;

/// Whether the querying session is encrypted, at PostgreSQL.
pub(crate) const ENCRYPTED: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

/// A PostgreSQL that presents a certificate of this authority, for 127.0.0.1 and localhost.
fn server(authority: &Authority, auth: Auth) -> Postgres {
    server_with(authority, auth, &authority.issue_local("server"))
}

pub(crate) fn server_with(authority: &Authority, auth: Auth, pair: &Pair) -> Postgres {
    let settings = authority.settings(pair);
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    Postgres::start_with(auth, &settings)
}

/// Creates the role `app` with a password that this method can check.
pub(crate) fn create_app(postgres: &Postgres, auth: Auth, password: &str) {
    let encryption = match auth {
        Auth::Md5 => "md5",
        _ => "scram-sha-256",
    };
    let quoted = password.replace('\'', "''");
    postgres.sql(&format!(
        "SET password_encryption = '{encryption}'; CREATE ROLE app LOGIN PASSWORD '{quoted}'"
    ));
}

/// Allows only encrypted logins by TCP, as with `rds.force_ssl` on RDS.
pub(crate) fn force_tls(postgres: &Postgres, method: &str) {
    let hba = format!("local all all trust\nhostssl all all all {method}\n");
    std::fs::write(postgres.data().join("pg_hba.conf"), hba).unwrap();
    postgres.sql("SELECT pg_reload_conf()");
}

/// TLS to clients, with a certificate for 127.0.0.1 and localhost.
pub(crate) fn with_tls(options: Options, mode: &str, pair: &Pair) -> Options {
    options
        .flag("--tls-mode", mode)
        .flag("--tls-certificate", &pair.certificate.display().to_string())
        .flag("--tls-key", &pair.key.display().to_string())
}

fn proxy(postgres: &Postgres, mode: &str, pair: &Pair) -> Proxy {
    Proxy::start_with(with_tls(Options::new(postgres), mode, pair))
}

/// Address of a server with parameters for TLS.
pub(crate) fn upstream(postgres: &Postgres, host: &str, parameters: &str) -> String {
    format!("postgres://{host}:{}?{parameters}", postgres.port())
}

/// Runs psql with these variables of libpq.
pub(crate) fn psql(endpoint: &Endpoint, variables: &[(&str, &str)], sql: &str) -> Output {
    let mut psql = program("psql", endpoint);
    psql.args(["-X", "-A", "-t"]).env("HOME", "/nonexistent");
    psql.envs(variables.iter().copied());
    feed(psql, sql)
}

/// Standard error of psql for a login that must fail.
#[track_caller]
pub(crate) fn refused(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "it should have failed: {text}");
    text
}
