//! Startup packets: versions, negotiation, parameters, errors.

use std::io::{Read as _, Write as _};

use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::{Stage, leader};
use pgpalisade_test_servers::wire::{
    Batch, Endpoint, Message, PROTOCOL_3_0, PROTOCOL_3_2, TRUSTED, Wire, as_of_18, pretty,
    startup_packet, trusted,
};

use super::{SETUP, compare};

fn greeting(endpoint: &Endpoint, packet: &[u8]) -> Vec<Message> {
    let mut wire = Wire::connect(endpoint);
    wire.send_bytes(packet);
    wire.until_ready()
}

#[track_caller]
fn check_packet(stage: &Stage, version: u32, more: &[(&str, &str)]) {
    let packet = startup_packet(version, &trusted(more));
    compare(
        greeting(&stage.postgres.tcp(), &packet),
        greeting(&stage.proxy.endpoint(), &packet),
    );
}

/// The server negotiates and the proxy forwards its reply:
/// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-START-UP>.
#[test]
fn newer_minor_versions_and_protocol_options() {
    let stage = Stage::start();
    let token = ("fencing.token", "1");
    check_packet(&stage, PROTOCOL_3_0, &[token, ("_pq_.some_option", "on")]);
    check_packet(&stage, PROTOCOL_3_2, &[token]);
    check_packet(
        &stage,
        0x0003_270f,
        &[token, ("_pq_.test_protocol_negotiation", "")],
    );
    check_packet(&stage, 0x0003_270f, &[]);
}

/// The proxy answers them itself, with PostgreSQL's message but without the place in its source.
#[test]
fn unknown_major_versions() {
    let stage = Stage::start();
    for version in [0, 0x0004_0000, 0x0004_0007, 80_877_101, u32::MAX] {
        let packet = startup_packet(version, &TRUSTED);
        let answer = |endpoint| {
            let told = greeting(&endpoint, &packet);
            let fields = |message: &Message| {
                let field = |code: &u8| message.field(*code).as_deref().map(as_of_18);
                (message.tag, b"SVCMDH".iter().map(field).collect::<Vec<_>>())
            };
            told.iter().map(fields).collect::<Vec<_>>()
        };
        let found = answer(stage.postgres.tcp());
        assert_eq!(found, answer(stage.proxy.endpoint()), "{version:x}");
    }
    // To an older client, which reads a text up to its end, byte for byte.
    for version in [1, 0x0001_0000, 0x0002_0000] {
        let packet = startup_packet(version, &TRUSTED);
        let answer = |endpoint: Endpoint| {
            let Endpoint::Tcp(address) = endpoint else {
                unreachable!()
            };
            let mut socket = std::net::TcpStream::connect(address).unwrap();
            socket.write_all(&packet).unwrap();
            let mut told = Vec::new();
            socket.read_to_end(&mut told).unwrap();
            as_of_18(&String::from_utf8_lossy(&told))
        };
        let told = answer(stage.proxy.endpoint());
        assert!(told.starts_with("EFATAL:  unsupported frontend protocol "));
        assert_eq!(answer(stage.postgres.tcp()), told, "{version:x}");
    }
}

#[test]
fn refused_startups() {
    let stage = Stage::start();
    let token = ("fencing.token", "1");
    check_packet(&stage, PROTOCOL_3_0, &[token, ("no_such_parameter", "1")]);
    check_packet(&stage, PROTOCOL_3_0, &[("no_such_parameter", "1")]);
    check_packet(&stage, PROTOCOL_3_0, &[token, ("work_mem", "a lot")]);
    check_packet(&stage, PROTOCOL_3_0, &[token, ("options", "-c broken")]);
    for parameters in [
        vec![("user", "nobody_like_this"), ("database", "postgres")],
        vec![("user", "postgres"), ("database", "no_such_database")],
        vec![("database", "postgres")],
        vec![],
    ] {
        let packet = startup_packet(PROTOCOL_3_0, &parameters);
        compare(
            greeting(&stage.postgres.tcp(), &packet),
            greeting(&stage.proxy.endpoint(), &packet),
        );
    }
}

/// A session without a token runs read-only internally, and must not notice that in the values reported at login.
#[test]
fn a_session_without_a_token_is_told_the_same() {
    let stage = Stage::start();
    check_packet(&stage, PROTOCOL_3_0, &[]);
    check_packet(
        &stage,
        PROTOCOL_3_0,
        &[
            ("application_name", "an app"),
            ("client_encoding", "LATIN1"),
        ],
    );
    check_packet(
        &stage,
        PROTOCOL_3_0,
        &[("default_transaction_read_only", "on")],
    );
    check_packet(
        &stage,
        PROTOCOL_3_0,
        &[("default_transaction_read_only", "off")],
    );
    check_packet(
        &stage,
        PROTOCOL_3_0,
        &[(
            "options",
            "-c default_transaction_read_only=on -c TimeZone=UTC",
        )],
    );
    check_packet(
        &stage,
        PROTOCOL_3_0,
        &[("options", "-c search_path=a\\ b --work-mem=5MB")],
    );
    // Without a database the user name is used.
    let packet = startup_packet(PROTOCOL_3_0, &[("user", "postgres")]);
    compare(
        greeting(&stage.postgres.tcp(), &packet),
        greeting(&stage.proxy.endpoint(), &packet),
    );
}

/// The same for its queries: every read of a plain session is the server's own.
#[test]
fn reads_of_a_session_without_a_token() {
    let stage = Stage::with(SETUP);
    let transcript = |endpoint: Endpoint| {
        let mut wire = Wire::login(&endpoint, &TRUSTED);
        let mut log = wire.query("SELECT chatter(1); TABLE items");
        log.extend(wire.query("BEGIN; SELECT 1; SAVEPOINT s; SELECT 1/0"));
        log.extend(wire.query("ROLLBACK TO s; COMMIT"));
        log.extend(
            wire.run(
                &Batch::new()
                    .statement("SELECT 1")
                    .statement("SELECT 1/0")
                    .statement("SELECT 2")
                    .sync(),
            ),
        );
        log.extend(wire.query("COPY items TO STDOUT"));
        log.extend(wire.query("EXPLAIN (COSTS OFF) SELECT * FROM items WHERE id = 1"));
        log.extend(wire.query("DISCARD ALL"));
        log.extend(wire.query("SET application_name = 'renamed'"));
        log.extend(wire.query("RESET ALL"));
        log
    };
    compare(
        transcript(stage.postgres.tcp()),
        transcript(stage.proxy.endpoint()),
    );
}

/// PostgreSQL accepts startup packets up to 10,000 bytes and closes on a larger one.
#[test]
fn startup_packets_near_the_limit() {
    let stage = Stage::start();
    let sized = |total: usize| {
        let empty = startup_packet(
            PROTOCOL_3_0,
            &[
                TRUSTED.as_slice(),
                &[("fencing.token", "1"), ("options", "")],
            ]
            .concat(),
        );
        // Spaces between options are ignored.
        let filler = " ".repeat(total - empty.len());
        let more = [("fencing.token", "1"), ("options", filler.as_str())];
        startup_packet(PROTOCOL_3_0, &[TRUSTED.as_slice(), &more].concat())
    };
    let largest = sized(10_000);
    assert_eq!(largest.len(), 10_000);
    compare(
        greeting(&stage.postgres.tcp(), &largest),
        greeting(&stage.proxy.endpoint(), &largest),
    );
    let answer = greeting(&stage.proxy.endpoint(), &sized(10_005));
    assert!(answer.last().unwrap().is_closed(), "{}", pretty(&answer));
    assert!(
        !answer.iter().any(|message| message.tag == b'R'),
        "it was let in:\n{}",
        pretty(&answer)
    );
}

/// The proxy also reaches the server by its unix socket.
#[test]
fn upstream_by_unix_socket() {
    let postgres = Postgres::start();
    let mut options = Options::new(&postgres).with_own_role(&postgres);
    let directory = postgres.socket_dir().display();
    options.upstream = format!("postgres:///?host={directory}&port={}", postgres.port());
    let proxy = Proxy::start_with(options);
    let packet = startup_packet(PROTOCOL_3_0, &trusted(&[("fencing.token", "1")]));
    compare(
        greeting(&postgres.socket(), &packet),
        greeting(&proxy.endpoint(), &packet),
    );
    let mut wire = leader(&proxy.endpoint(), "1");
    let by_socket = wire.rows("SELECT inet_client_addr() IS NULL");
    assert_eq!(by_socket, [["t"]]);
}
