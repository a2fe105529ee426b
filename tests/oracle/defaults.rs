//! Read-only mode requested or set elsewhere: in the startup packet, for a role, a database, the server. Also the
//! values that clients find.

use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::programs::program;
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Message, PROTOCOL_3_0, Wire, pretty};

use super::world::stage;

const APP: [(&str, &str); 2] = [("user", "app"), ("database", "postgres")];
const READ_ONLY: &str = "default_transaction_read_only";

fn login(stage: &Stage, more: &[(&str, &str)]) -> Wire {
    Wire::login(&stage.proxy.endpoint(), &[APP.as_slice(), more].concat())
}

#[track_caller]
fn assert_closed(wire: &mut Wire, what: &str) {
    for round in [
        "SELECT 1",
        "RESET ALL",
        "DISCARD ALL",
        "SET ROLE app",
        "RESET ROLE",
    ] {
        wire.query(round);
        let answer = wire.query("SELECT writes()");
        assert!(
            answer.iter().any(|message| message.sqlstate() == "25006"),
            "{what}, after {round}:\n{}",
            pretty(&answer)
        );
    }
    // SHOW would return the value that the client requested.
    let truth = format!("SELECT current_setting('{READ_ONLY}')");
    assert_eq!(wire.rows(&truth), [["on"]], "{what}");
}

/// No startup packet makes a session without a token read-write.
#[test]
fn startup_packets_do_not_lift_it() {
    let stage = stage();
    for more in [
        vec![(READ_ONLY, "off")],
        vec![("DEFAULT_TRANSACTION_READ_ONLY", "off")],
        vec![("Default_Transaction_Read_Only", "no")],
        vec![(READ_ONLY, "off"), (READ_ONLY, "off")],
        vec![("transaction_read_only", "off")],
        vec![("options", "-c default_transaction_read_only=off")],
        vec![("options", "-cdefault_transaction_read_only=off")],
        vec![("options", "--default-transaction-read-only=off")],
        vec![("options", "--DEFAULT_transaction-read-only=of")],
        vec![("options", r"-c default_transaction_read_only=\o\f\f")],
        vec![("options", "-c transaction_read_only=off")],
        vec![
            ("options", "-c default_transaction_read_only=off"),
            (READ_ONLY, "off"),
        ],
        vec![(
            "options",
            "-c default_transaction_read_only=on -c default_transaction_read_only=off",
        )],
    ] {
        let mut wire = Wire::connect(&stage.proxy.endpoint());
        wire.startup(PROTOCOL_3_0, &[APP.as_slice(), &more].concat());
        let answer = wire.until_ready();
        // PostgreSQL may refuse the packet. If it accepts, the session must be read-only.
        if answer.last().is_some_and(|last| last.tag == b'Z') {
            assert_closed(&mut wire, &format!("{more:?}"));
        } else {
            println!("{more:?} is refused: {}", pretty(&answer));
        }
    }
    assert_eq!(stage.value("SELECT count(*) FROM log"), "0");
}

/// A value for the role, the database, or both has lower precedence than the proxy's value in the startup packet.
#[test]
fn values_of_roles_and_databases_do_not_lift_it() {
    let stage = stage();
    for sql in [
        "ALTER ROLE app SET default_transaction_read_only = off",
        "ALTER ROLE app IN DATABASE postgres SET default_transaction_read_only = off",
        "ALTER DATABASE postgres SET default_transaction_read_only = off",
        "ALTER ROLE ALL SET default_transaction_read_only = off",
        "ALTER SYSTEM SET default_transaction_read_only = off",
    ] {
        // Before the session begins, and while it exists.
        let mut before = login(&stage, &[]);
        stage.sql(sql);
        stage.sql("SELECT pg_reload_conf()");
        assert_closed(&mut before, sql);
        assert_closed(&mut login(&stage, &[]), sql);
        // Also by a session with a token, as a team's migration would.
        let mut leader = stage.leader("5");
        leader.ok(sql);
        assert_closed(&mut login(&stage, &[]), sql);
    }
    assert_eq!(stage.value("SELECT count(*) FROM log"), "0");
}

fn reported(answer: &[Message], name: &str) -> Option<String> {
    answer.iter().rev().find_map(|message| {
        let mut parts = message.body.split(|byte| *byte == 0);
        let found = message.tag == b'S' && parts.next()? == name.as_bytes();
        found.then(|| String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned())
    })
}

fn greeting(stage: &Stage, more: &[(&str, &str)]) -> (Wire, Option<String>) {
    let mut wire = Wire::connect(&stage.proxy.endpoint());
    wire.startup(PROTOCOL_3_0, &[APP.as_slice(), more].concat());
    let answer = wire.until_ready();
    assert_eq!(
        answer.last().map(|last| last.tag),
        Some(b'Z'),
        "{}",
        pretty(&answer)
    );
    (wire, reported(&answer, READ_ONLY))
}

fn write(wire: &mut Wire) -> String {
    let answer = wire.query("SELECT writes()");
    let error = answer.iter().find(|message| message.tag == b'E');
    error.map_or_else(|| "written".to_owned(), Message::sqlstate)
}

/// A session's view of read-only mode that the operator has set for a role or for the whole server.
#[test]
fn read_only_mode_set_by_the_operator() {
    for whole_server in ["", "default_transaction_read_only=on"] {
        let postgres = if whole_server.is_empty() {
            let postgres = Postgres::start();
            postgres.sql(super::corpus::WORLD);
            postgres.sql("ALTER ROLE app SET default_transaction_read_only = on");
            postgres
        } else {
            let mut postgres = Postgres::start_with(Auth::Trust, &[]);
            postgres.sql(super::corpus::WORLD);
            postgres.crash();
            postgres.start_again(&[whole_server]);
            postgres
        };
        let proxy = Proxy::start(&postgres);
        let stage = Stage { proxy, postgres };
        let (mut wire, told) = greeting(&stage, &[]);
        println!("{whole_server}: without a token told {told:?}");
        assert_closed(&mut wire, "set by the operator");
        // With a token from the start, the proxy adds nothing to the packet.
        let (mut wire, told) = greeting(&stage, &[("fencing.token", "5")]);
        let by_startup = write(&mut wire);
        println!("{whole_server}: token in the packet: told {told:?}, {by_startup}");
        assert_eq!(told.as_deref(), Some("on"));
        assert_eq!(by_startup, "25006");
        let (mut wire, _) = greeting(&stage, &[]);
        wire.ok("SET fencing.token = 5");
        let by_set = write(&mut wire);
        println!("{whole_server}: token by SET: {by_set}");
        assert_eq!(by_set, "25006");
    }
}

fn psql(stage: &Stage, attributes: &str, host: &str) -> (String, String) {
    let mut command = program("psql", &stage.proxy.endpoint());
    let dsn = format!("host={host} target_session_attrs={attributes}");
    command.args(["-XAt", &dsn, "-c", "SELECT 'connected'"]);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// libpq considers a session without a token read-write by the value reported at login.
#[test]
fn target_session_attributes_of_libpq() {
    let stage = stage();
    let host = stage.proxy.endpoint().host();
    for attributes in ["any", "read-write", "primary", "prefer-standby"] {
        let (out, err) = psql(&stage, attributes, &host);
        assert_eq!(out, "connected", "{attributes}: {err}");
    }
    for attributes in ["read-only", "standby"] {
        let (out, err) = psql(&stage, attributes, &host);
        assert_eq!(out, "", "{attributes}");
        assert!(err.contains("failed: "), "{attributes}: {err}");
    }
}

/// tokio-postgres asks the server, with SHOW transaction_read_only.
#[test]
fn target_session_attributes_of_tokio_postgres() {
    let stage = stage();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connect = |token: &str| {
        let mut config = tokio_postgres::Config::new();
        config
            .host(stage.proxy.endpoint().host())
            .port(stage.proxy.endpoint().port())
            .user("postgres")
            .dbname("postgres")
            .target_session_attrs(tokio_postgres::config::TargetSessionAttrs::ReadWrite);
        if !token.is_empty() {
            config.options(format!("-c fencing.token={token}"));
        }
        runtime.block_on(async {
            config
                .connect(tokio_postgres::NoTls)
                .await
                .map(drop)
                .map_err(|error| error.to_string())
        })
    };
    connect("5").unwrap();
    connect("").unwrap();
}
