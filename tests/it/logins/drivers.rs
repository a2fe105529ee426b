//! The table with other drivers than psql.

use std::path::Path;
use std::process::{Command, Output};

use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::postgres::Auth;
use pgpalisade_test_servers::programs::connect_by_environment;

use crate::interpreters::{java, node, node_packages, python};

use super::{ENCRYPTED, PASSWORD, Stage, Way};

const CLEAR: &str = "channel binding required, but SSL not in use";
const OVER_TLS_ONLY: &str = "28000: pgpalisade asks for the password over TLS only";
const NOT_RELAYED: &str = "28000: a login with SCRAM and channel binding cannot be relayed";

/// Each driver, with its settings of channel binding.
const DRIVERS: [(&str, &[&str]); 4] = [
    ("psycopg", &["disable", "prefer", "require"]),
    ("asyncpg", &["disable"]),
    ("node-postgres", &["disable", "prefer"]),
    ("pgjdbc", &["disable"]),
];

fn command(driver: &str, packages: &Path) -> Command {
    let programs = repository().join("tests/it/logins/drivers");
    let mut command = match driver {
        "node-postgres" => node(packages, &programs.join("login.js")),
        "pgjdbc" => java(&programs.join("Login.java")),
        _ => python(&programs.join("login.py")),
    };
    command.args([driver, ENCRYPTED]);
    command
}

fn login(way: &Way, packages: &Path, driver: &str, client: &str, binding: &str) -> Output {
    let mut command = command(driver, packages);
    connect_by_environment(&mut command, &way.proxy.endpoint());
    let root = way.stage.authority.certificate();
    command
        .env("PGUSER", "app")
        .env("PGPASSWORD", PASSWORD)
        .env("PGSSLMODE", client)
        .env("PGSSLROOTCERT", root)
        .env("PGCHANNELBINDING", binding)
        .output()
        .unwrap()
}

/// A driver's error message, or empty if it succeeds.
fn expected(auth: &str, client: &str, server: &str, driver: &str, binding: &str) -> &'static str {
    let encrypted = client == "verify-full";
    match (auth, encrypted, server, binding) {
        // Without TLS it still announces support of channel binding, and PostgreSQL has TLS.
        ("relay", false, "require", "prefer") if driver == "node-postgres" => NOT_RELAYED,
        ("password", false, ..) => OVER_TLS_ONLY,
        // Debian's asyncpg, 0.27, cannot send a non-ASCII password in plain text.
        ("password", true, ..) if driver == "asyncpg" => "'ascii' codec can't encode",
        (_, false, _, "require") => CLEAR,
        ("relay", true, "require", "prefer" | "require") => NOT_RELAYED,
        ("relay", true, "disable", "require") => "did not offer an authentication method",
        ("password", true, _, "require") => "channel binding required but not supported",
        _ => "",
    }
}

#[test]
fn drivers() {
    let packages = node_packages("examples", "drivers");
    let mut wrong = Vec::new();
    for auth in ["relay", "scram", "password"] {
        for server in ["disable", "require"] {
            let stage = Stage::new(Auth::Scram);
            let way = match auth {
                "scram" => stage.scram(server),
                _ => stage.way(server, &[("--auth", auth)]),
            };
            for client in ["disable", "verify-full"] {
                for (driver, bindings) in DRIVERS {
                    for binding in bindings {
                        let output = login(&way, &packages, driver, client, binding);
                        let said = String::from_utf8_lossy(&output.stderr).into_owned();
                        let cell = format!(
                            "{auth}: client {client}, server {server}: {driver} {binding}: {said}"
                        );
                        println!("{cell}");
                        let expect = expected(auth, client, server, driver, binding);
                        if output.status.success() != expect.is_empty() || !said.contains(expect) {
                            wrong.push(cell);
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
