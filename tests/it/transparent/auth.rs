//! Authentication is relayed unchanged: the proxy knows no password.

use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::programs::{feed, program, stdout};
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::wire::{Batch, Endpoint, PROTOCOL_3_0, Wire};

use super::compare;

const PASSWORD: &str = "corréct 'horse'";

fn server(auth: Auth) -> Postgres {
    let encryption = match auth {
        Auth::Md5 => "password_encryption=md5",
        _ => "password_encryption=scram-sha-256",
    };
    let postgres = Postgres::start_with(auth, &[encryption]);
    postgres.sql(&format!(
        "CREATE ROLE app LOGIN PASSWORD '{}'",
        PASSWORD.replace('\'', "''")
    ));
    postgres
}

/// Logs in with tokio-postgres and returns its user name, or the SQLSTATE of the refusal.
fn driver(endpoint: &Endpoint, password: &str) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut config = tokio_postgres::Config::new();
        config
            .host(endpoint.host())
            .port(endpoint.port())
            .user("app")
            .password(password)
            .dbname("postgres");
        let (client, connection) = match config.connect(tokio_postgres::NoTls).await {
            Ok(both) => both,
            Err(error) => {
                return Err(error
                    .code()
                    .map_or_else(|| error.to_string(), |code| code.code().to_owned()));
            }
        };
        let driven = tokio::spawn(connection);
        let row = client
            .query_one("SELECT current_user::text", &[])
            .await
            .map_err(|error| error.to_string())?;
        drop(client);
        driven.await.unwrap().map_err(|error| error.to_string())?;
        Ok(row.get(0))
    })
}

#[track_caller]
fn check(auth: Auth) {
    let postgres = server(auth);
    let proxy = Proxy::start(&postgres);
    for password in [PASSWORD, "wrong"] {
        let (direct, proxied) = (
            driver(&postgres.tcp(), password),
            driver(&proxy.endpoint(), password),
        );
        assert_eq!(direct, proxied, "tokio-postgres with {password:?}");
        if password == PASSWORD {
            assert_eq!(proxied, Ok("app".to_owned()));
        }
    }
    let mut psql = program("psql", &proxy.endpoint());
    psql.args(["-X", "-A", "-t"])
        .env("PGUSER", "app")
        .env("PGPASSWORD", PASSWORD);
    assert_eq!(stdout(&feed(psql, "SELECT current_user")), "app\n");
}

#[test]
fn each_method() {
    for auth in [Auth::Trust, Auth::Password, Auth::Md5, Auth::Scram] {
        check(auth);
    }
}

/// Byte for byte, if the exchange has nothing random in it.
#[test]
fn a_wrong_password_in_the_clear() {
    let postgres = server(Auth::Password);
    let proxy = Proxy::start(&postgres);
    let transcript = |endpoint: Endpoint, password: &str| {
        let mut wire = Wire::connect(&endpoint);
        wire.startup(
            PROTOCOL_3_0,
            &[
                ("user", "app"),
                ("database", "postgres"),
                ("fencing.token", "1"),
            ],
        );
        let mut log = wire.until(b'R');
        log.extend(wire.run(&Batch::new().password(password)));
        log
    };
    for password in [PASSWORD, "wrong", ""] {
        compare(
            transcript(postgres.tcp(), password),
            transcript(proxy.endpoint(), password),
        );
    }
}
