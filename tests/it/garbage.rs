//! Clients that send nonsense, send nothing, or read nothing: each harms only itself.

use std::fs::Permissions;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::{seed, wait_for, wait_until};
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir};
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{
    Batch, PROTOCOL_3_0, SSL_REQUEST, TRUSTED, Wire, cancel_request, packet, pretty,
    startup_packet, tags,
};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

const LOGIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Sessions through the proxy; the harness and the control connection use the unix socket.
const THROUGH_TCP: &str = "SELECT count(*) FROM pg_stat_activity WHERE client_addr IS NOT NULL";

const JOBS: &str = "CREATE TABLE jobs (id int)";

fn stage() -> Stage {
    Stage::with_flags(JOBS, &[("--login-timeout", "2s")])
}

/// A well-behaved client is still served.
#[track_caller]
fn assert_serves(stage: &Stage) {
    let mut wire = stage.leader("1");
    wire.ok("INSERT INTO jobs VALUES (1)");
    assert_eq!(wire.rows("SELECT 1"), [["1"]]);
}

/// A server that accepts connections and sends nothing.
fn mute_server() -> (TcpListener, Postgres, Options) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let postgres = Postgres::start();
    let mut options = Options::new(&postgres);
    options.upstream = format!("postgres://{}", server.local_addr().unwrap());
    (server, postgres, options)
}

/// The next connection to it, and its first bytes.
fn first_bytes(server: &TcpListener) -> (TcpStream, [u8; 8]) {
    let mut connection = wait_for("a connection", || Some(server.accept().ok()?.0));
    connection.set_nonblocking(false).unwrap();
    connection
        .set_read_timeout(Some(LOGIN_TIMEOUT * 4))
        .unwrap();
    let mut first = [0; 8];
    connection.read_exact(&mut first).unwrap();
    (connection, first)
}

/// Only a complete and valid packet opens a connection to PostgreSQL.
#[test]
fn nothing_but_sound_packets_reaches_the_server() {
    let (server, _postgres, options) = mute_server();
    let proxy = Proxy::start_with(options);
    for (code, body) in [
        (80_877_103, &[0; 1][..]),
        (80_877_103, &[0; 9_000]),
        (80_877_104, &[0; 1]),
        (80_877_104, &[0; 8]),
        (80_877_102, &[]),
        (80_877_102, &[0; 7]),
        (80_877_102, &[0; 261]),
        (80_877_101, &[0; 8]),
        (0, &[0; 8]),
        (0x0002_0000, &[0; 288]),
        (0x0004_0000, b"user\0postgres\0\0"),
        (PROTOCOL_3_0, b"user\0postgres\0"),
        (PROTOCOL_3_0, b"user\0postgres\0\0\0"),
    ] {
        let mut socket = Wire::connect(&proxy.endpoint());
        socket.send_bytes(&packet(code, body));
        while socket.read_byte().is_some() {}
    }
    assert!(server.accept().is_err(), "something has reached the server");
    let _whole = Wire::open(&proxy.endpoint(), &[]);
    let (_connection, first) = first_bytes(&server);
    assert_eq!(first[4..], PROTOCOL_3_0.to_be_bytes());
}

/// Any key may belong to somebody, so the number of PostgreSQL connections for cancel requests is limited too.
#[test]
fn cancel_requests_are_bounded() {
    let (server, _postgres, options) = mute_server();
    let proxy = Proxy::start_with(options.flag("--connections-max", "2"));
    let cancel = || {
        let mut wire = Wire::connect(&proxy.endpoint());
        wire.send_bytes(&cancel_request(&[1; 8]));
        wire
    };
    let mut clients: Vec<Wire> = (0..24).map(|_| cancel()).collect();
    let mut connections: Vec<TcpStream> = Vec::new();
    for _ in 0..16 {
        let (connection, first) = first_bytes(&server);
        assert_eq!(first[4..], 80_877_102_u32.to_be_bytes());
        connections.push(connection);
    }
    // Places for sessions are separate, so the next connection belongs to this session.
    let _session = Wire::open(&proxy.endpoint(), &[]);
    let (_connection, first) = first_bytes(&server);
    assert_eq!(first[4..], PROTOCOL_3_0.to_be_bytes());
    // A finished request makes room for the next, even if its client is still connected.
    clients.clear();
    connections.clear();
    let mut last = cancel();
    let (connection, first) = first_bytes(&server);
    assert_eq!(first[4..], 80_877_102_u32.to_be_bytes());
    drop(connection);
    assert!(last.until_closed().last().unwrap().is_closed());
}

/// Whatever the proxy waits for: when the client leaves, its connection to PostgreSQL closes too.
#[test]
fn nothing_goes_on_for_a_client_that_has_left() {
    let dir = scratch_dir();
    let users = dir.path().join("users");
    for auth in ["relay", "scram"] {
        let (server, postgres, mut options) = mute_server();
        if auth == "scram" {
            postgres.sql("CREATE ROLE app PASSWORD 'secret'");
            let verifier = "SELECT rolpassword FROM pg_authid WHERE rolname = 'app'";
            let user = format!("\"app\" \"{}\"\n", postgres.value(verifier));
            std::fs::write(&users, user).unwrap();
            std::fs::set_permissions(&users, Permissions::from_mode(0o600)).unwrap();
            let users = users.display().to_string();
            options = options.flag("--auth", auth).flag("--auth-file", &users);
        }
        let proxy = Proxy::start_with(options);
        let mut wire = Wire::open(&proxy.endpoint(), &[]);
        // More than the proxy reads ahead during a login.
        wire.send(&Batch::new().query(&"x".repeat(80 * 1024)));
        let (mut connection, _) = first_bytes(&server);
        drop(wire);
        let begin = Instant::now();
        let mut rest = Vec::new();
        connection.read_to_end(&mut rest).unwrap();
        println!("{auth}: gone after {:?}", begin.elapsed());
    }
}

/// Lengths of messages in a session: 0 and 3 are impossible, the large ones are never allocated.
#[test]
fn lengths_of_messages() {
    let stage = stage();
    for tag in *b"QPBDECSHFdcfXp~\0" {
        for length in [0, 3, i32::MAX, -1, i32::MIN] {
            let mut wire = stage.leader("1");
            let before = stage.proxy.resident_kib();
            wire.send_bytes(&[&[tag], length.to_be_bytes().as_slice(), b"some bytes"].concat());
            wire.shut_down_writing();
            let answer = wire.until_closed();
            let grown = stage.proxy.resident_kib().saturating_sub(before);
            assert!(
                grown < 20_000,
                "tag {tag}, length {length}: {grown} KiB more"
            );
            let bad = answer
                .iter()
                .any(|message| message.tag == b'C' || message.tag == b'Z');
            assert!(!bad, "tag {tag}, length {length}:\n{}", pretty(&answer));
        }
    }
    assert_serves(&stage);
}

/// PostgreSQL answers what comes before it, so its client learns of what was committed.
#[test]
fn what_came_before_nonsense_is_answered() {
    let stage = stage();
    let insert = "INSERT INTO jobs VALUES (7)";
    let sleeps = "SELECT pg_sleep(0.2); INSERT INTO jobs VALUES (7)";
    let run = Batch::new()
        .parse("", insert)
        .bind("", "", &[])
        .execute("", 0);
    let befores = [
        run.sync(),
        Batch::new().query(insert),
        Batch::new().query(sleeps),
    ];
    let garbage: [&[u8]; 3] = [b"y\0\0\0\x04", b"Q\0\0\0\x03", b"p\0\0\0\x04"];
    let mut count = 0;
    for before in &befores {
        for nonsense in garbage {
            let mut wire = stage.leader("1");
            wire.send_bytes(&[before.bytes(), nonsense].concat());
            let answer = wire.until_closed();
            let heard: String = answer
                .iter()
                .map(|message| char::from(message.tag))
                .collect();
            assert!(heard.contains("CZE"), "{}", pretty(&answer));
            let told = answer.iter().find(|message| message.tag == b'E').unwrap();
            assert_eq!(told.sqlstate(), "08P01");
            count += 1;
            let rows = stage.value("SELECT count(*) FROM jobs");
            assert_eq!(rows, count.to_string());
        }
    }
}

#[test]
fn random_bytes() {
    let stage = stage();
    let mut random = StdRng::seed_from_u64(seed());
    for _ in 0..200 {
        let mut bytes = vec![0; random.random_range(1..600)];
        random.fill_bytes(&mut bytes);
        if random.random_bool(0.5) {
            // A plausible length, so that the rest is parsed.
            let length = u32::try_from(bytes.len().max(8)).unwrap();
            bytes.resize(bytes.len().max(8), 0);
            bytes[..4].copy_from_slice(&length.to_be_bytes());
            if random.random_bool(0.5) {
                bytes[4..8].copy_from_slice(&PROTOCOL_3_0.to_be_bytes());
            }
        }
        let mut wire = Wire::connect(&stage.proxy.endpoint());
        wire.send_bytes(&bytes);
        wire.shut_down_writing();
        wire.until_closed();
    }
    assert_serves(&stage);
    for _ in 0..200 {
        let mut bytes = vec![0; random.random_range(1..600)];
        random.fill_bytes(&mut bytes);
        if random.random_bool(0.7) {
            bytes[0] = b"QPBDECSHFdcfp"[random.random_range(0..13)];
            let length = u32::try_from(random.random_range(4..bytes.len() + 5)).unwrap();
            let header = bytes.len().min(5);
            bytes[1..header].copy_from_slice(&length.to_be_bytes()[..header - 1]);
        }
        let mut wire = stage.plain();
        wire.send_bytes(&bytes);
        wire.shut_down_writing();
        wire.until_closed();
    }
    assert_serves(&stage);
}

/// Bytes that arrive before the reply to SSLRequest could be an attack on later messages (CVE-2021-23214): the
/// connection ends.
#[test]
fn bytes_after_ssl_request() {
    let stage = stage();
    let stuffed = [&SSL_REQUEST[..], &startup_packet(PROTOCOL_3_0, &TRUSTED)].concat();
    let mut wire = Wire::connect(&stage.proxy.endpoint());
    wire.send_bytes(&stuffed);
    // Whether or not an `N` comes first: no login succeeds.
    let first = wire.read_byte();
    if first == Some(b'N') {
        assert!(wire.until_closed().last().unwrap().is_closed());
    } else {
        assert!(first.is_none() || first == Some(b'E'), "{first:?}");
    }
    assert_eq!(stage.value(THROUGH_TCP), "0");
    assert_serves(&stage);
}

/// One byte a second is too slow, as is silence: the timeout applies to the whole login.
#[test]
fn silence_and_one_byte_a_second() {
    let stage = stage();
    let begin = Instant::now();
    let mut silent = Wire::connect(&stage.proxy.endpoint());
    let mut wire = Wire::connect(&stage.proxy.endpoint());
    wire.set_patience(Duration::from_secs(1));
    let mut closed = false;
    for byte in startup_packet(PROTOCOL_3_0, &TRUSTED) {
        wire.send_bytes(&[byte]);
        // The wait for a reply takes the second.
        if wire.try_read().is_ok() {
            closed = true;
            break;
        }
    }
    assert!(closed, "still there");
    assert!(!tags(&silent.until_closed()).contains('Z'), "it was let in");
    let took = begin.elapsed();
    let in_time = LOGIN_TIMEOUT / 2..LOGIN_TIMEOUT * 3;
    assert!(in_time.contains(&took), "{took:?}");
    assert_serves(&stage);
}

/// A client requests 400 MB and reads none of it: the proxy buffers a bounded part, and the server waits.
#[test]
fn a_client_that_never_reads() {
    let stage = stage();
    assert_serves(&stage);
    let before = stage.proxy.resident_kib();
    let mut greedy: Vec<Wire> = (0..5).map(|_| stage.plain()).collect();
    for wire in &mut greedy {
        wire.send(&Batch::new().query("SELECT repeat('x', 1000000) FROM generate_series(1, 400)"));
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'";
    wait_until("the server to wait for the clients", || {
        stage.value(waiting) == "5"
    });
    let grown = stage.proxy.resident_kib().saturating_sub(before);
    println!("{grown} KiB for 5 clients that do not read");
    assert!(grown < 64 * 1024, "the proxy grew by {grown} KiB");
    assert_serves(&stage);
}

/// A client that sends requests endlessly and reads no reply.
#[test]
fn a_client_that_only_sends() {
    let stage = stage();
    assert_serves(&stage);
    let before = stage.proxy.resident_kib();
    let mut wire = stage.plain();
    let requests = (0..1000).fold(Batch::new(), |all, _| {
        all.statement("SELECT repeat('x', 1000)")
    });
    let mut sent = 0;
    wire.set_write_patience(Duration::from_secs(1));
    while sent < 500 && wire.try_send_bytes(requests.bytes()).is_ok() {
        sent += 1;
    }
    let grown = stage.proxy.resident_kib().saturating_sub(before);
    println!("{grown} KiB after {sent} thousand requests whose answers nobody reads");
    assert!(sent < 500, "nothing held the client back");
    assert!(grown < 64 * 1024, "the proxy grew by {grown} KiB");
    assert_serves(&stage);
}

#[test]
fn a_thousand_connections_that_close_at_once() {
    // Their logins may take longer than two seconds.
    let stage = Stage::with(JOBS);
    for round in 0..1000 {
        let mut wire = Wire::connect(&stage.proxy.endpoint());
        if round % 2 == 0 {
            wire.send_bytes(&startup_packet(PROTOCOL_3_0, &TRUSTED));
        }
    }
    assert_serves(&stage);
    wait_until("the sessions to be gone", || {
        stage.value(THROUGH_TCP) == "0"
    });
}

/// A Terminate by the proxy must not complete a text that its client has sent only in part.
#[test]
fn a_statement_that_did_not_arrive_whole_is_not_run() {
    let stage = stage();
    // Exceeds the part that the proxy analyses before forwarding.
    let filler = "y".repeat(3 << 20);
    let query = Batch::new().query(&format!(
        "INSERT INTO jobs VALUES (length('{filler}')) -- the end"
    ));
    for missing in 1..8 {
        let mut leader = stage.leader("1");
        leader.send_bytes(&query.bytes()[..query.bytes().len() - missing]);
        drop(leader);
        let count = || stage.value(THROUGH_TCP);
        wait_until("the end of the session", || count() == "0");
        let rows = stage.value("SELECT count(*) FROM jobs");
        assert_eq!(rows, "0", "without the last {missing} bytes");
    }
    assert_serves(&stage);
}

/// PostgreSQL treats a Terminate within the data of a COPY as an error, and would wait for more.
#[test]
fn a_client_that_leaves_within_a_copy_is_gone_at_once() {
    let stage = stage();
    for ends_within_a_message in [false, true] {
        let mut leader = stage.leader("1");
        let copy = Batch::new().query("COPY jobs FROM STDIN");
        leader.send(&copy);
        leader.until(b'G');
        let data = Batch::new().copy_data(b"1\n2\n");
        let cut = if ends_within_a_message { 2 } else { 0 };
        leader.send_bytes(&data.bytes()[..data.bytes().len() - cut]);
        let begin = Instant::now();
        drop(leader);
        let count = || stage.value(THROUGH_TCP);
        wait_until("the end of the session", || count() == "0");
        let took = begin.elapsed();
        assert!(
            took < Duration::from_secs(3),
            "{ends_within_a_message}: {took:?}"
        );
        assert_eq!(stage.value("SELECT count(*) FROM jobs"), "0");
    }
    assert_serves(&stage);
}

/// What it is refused waits for it, so no more is read.
#[test]
fn a_client_that_reads_no_refusal_is_held_up() {
    for pool in ["session", "transaction"] {
        let stage = Stage::with_flags(JOBS, &[("--pool", pool)]);
        for sql in ["DELETE FROM jobs", "BEGIN; ROLLBACK"] {
            let mut wire = stage.plain();
            wire.set_write_patience(Duration::from_secs(1));
            let refused = (0..10_000).fold(Batch::new(), |all, _| all.query(sql));
            let bytes = refused.bytes();
            let taken = (0..100).take_while(|_| wire.try_send_bytes(bytes).is_ok());
            let mebibytes = taken.count() * bytes.len() / 1024 / 1024;
            assert!(mebibytes < 16, "{pool}: {sql}: {mebibytes} MiB");
        }
    }
}
