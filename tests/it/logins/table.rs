//! The table: each login method, TLS on either leg or not, and each `channel_binding` of libpq.

use pgpalisade_test_servers::postgres::Auth;
use pgpalisade_test_servers::proxy::Proxy;

use super::{Stage, Way};

const CLEAR: &str = "channel binding required, but SSL not in use";
const NOT_OFFERED: &str =
    "server did not offer an authentication method that supports channel binding";
const NOT_SUPPORTED: &str =
    "channel binding required but not supported by server's authentication request";
const NOT_RELAYED: &str = "FATAL:  28000: a login with SCRAM and channel binding cannot be relayed";
const OVER_TLS_ONLY: &str = "FATAL:  28000: pgpalisade asks for the password over TLS only";

/// Results for `channel_binding` disable, prefer and require: `""` on success, or libpq's message.
type Row = (&'static str, &'static str, [&'static str; 3]);

#[track_caller]
fn check(rows: &[Row], way: impl Fn(&str) -> Way) {
    for server in ["disable", "require"] {
        let way = way(server);
        let encrypted = if server == "require" { "t" } else { "f" };
        for (client, _, cells) in rows.iter().filter(|(_, of, _)| *of == server) {
            for (binding, cell) in ["disable", "prefer", "require"].iter().zip(cells) {
                match *cell {
                    "" => way.works(client, binding, encrypted),
                    part => way.fails(client, binding, part),
                }
            }
        }
        let output = way.proxy.output();
        assert!(!output.contains("horse"), "{output}");
    }
}

#[test]
fn relayed() {
    let rows = [
        ("disable", "disable", ["", "", CLEAR]),
        ("disable", "require", ["", "", CLEAR]),
        ("verify-full", "disable", ["", "", NOT_OFFERED]),
        ("verify-full", "require", ["", NOT_RELAYED, NOT_RELAYED]),
    ];
    check(&rows, |server| {
        let way = Stage::new(Auth::Scram).way(server, &[]);
        if server == "require" {
            let hint = "HINT:  Connect with channel_binding=disable.";
            way.fails("verify-full", "prefer", hint);
        }
        way
    });
}

/// Channel binding refers to the certificate, and here both have the same one.
#[test]
fn relayed_with_the_servers_certificate() {
    let rows = [
        ("verify-full", "disable", ["", "", NOT_OFFERED]),
        ("verify-full", "require", ["", "", ""]),
    ];
    check(&rows, |server| {
        let stage = Stage::new(Auth::Scram);
        let options = stage.options(server, &[]);
        for kind in ["crt", "key"] {
            let path = |of| stage.authority.path(&format!("{of}.{kind}"));
            std::fs::copy(path("server"), path("proxy")).unwrap();
        }
        Way {
            proxy: Proxy::start_with(options),
            stage,
        }
    });
}

#[test]
fn relayed_passwords_and_hashes() {
    let rows = [
        ("disable", "disable", ["", "", NOT_SUPPORTED]),
        ("disable", "require", ["", "", NOT_SUPPORTED]),
        ("verify-full", "disable", ["", "", NOT_SUPPORTED]),
        ("verify-full", "require", ["", "", NOT_SUPPORTED]),
    ];
    for auth in [Auth::Password, Auth::Md5] {
        check(&rows, |server| {
            let stage = Stage::new(auth);
            // The method that it shows to users who do not exist.
            let method = "ALTER SYSTEM SET password_encryption = 'md5'";
            stage.postgres.sql(method);
            stage.postgres.sql("SELECT pg_reload_conf()");
            stage.way(server, &[])
        });
    }
}

#[test]
fn scram_at_the_proxy() {
    let rows = [
        ("disable", "disable", ["", "", CLEAR]),
        ("disable", "require", ["", "", CLEAR]),
        ("verify-full", "disable", ["", "", ""]),
        ("verify-full", "require", ["", "", ""]),
    ];
    check(&rows, |server| Stage::new(Auth::Scram).scram(server));
}

const BY_PASSWORD: [Row; 4] = [
    ("disable", "disable", [OVER_TLS_ONLY; 3]),
    ("disable", "require", [OVER_TLS_ONLY; 3]),
    ("verify-full", "disable", ["", "", NOT_SUPPORTED]),
    ("verify-full", "require", ["", "", NOT_SUPPORTED]),
];

#[test]
fn a_password_for_scram() {
    check(&BY_PASSWORD, |server| {
        Stage::new(Auth::Scram).way(server, &[("--auth", "password")])
    });
}

#[test]
fn a_password_for_md5() {
    check(&BY_PASSWORD, |server| {
        Stage::new(Auth::Md5).way(server, &[("--auth", "password")])
    });
}

/// A plain-text password requested by the server is not sent over an unencrypted connection.
#[test]
fn a_password_for_a_password() {
    const READABLE: &str = "DETAIL:  PostgreSQL asks for the password in clear text, but the connection to it is not \
        encrypted";
    let mut rows = BY_PASSWORD;
    rows[2].2 = [READABLE, READABLE, NOT_SUPPORTED];
    check(&rows, |server| {
        Stage::new(Auth::Password).way(server, &[("--auth", "password")])
    });
}
