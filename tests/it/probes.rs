//! Connections that never become sessions: probes of load balancers, and invalid startup packets. The proxy must
//! answer like PostgreSQL.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pgpalisade_test_servers::machine::{Running, TERM, wait_for, wait_until};
use pgpalisade_test_servers::postgres::scratch_dir;
use pgpalisade_test_servers::programs::haproxy;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{
    Endpoint, Message, PROTOCOL_3_0, SSL_REQUEST, Wire, cancel_request, packet, startup_packet,
};
use rustix::net::sockopt::set_socket_linger;

const GSSENC_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 48];

/// The log is written by a separate thread.
const A_LINE_LATER: Duration = Duration::from_millis(300);

/// A client's behaviour after its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Closes its sending side, and reads.
    HalfCloses,
    /// Only reads.
    Waits,
}

/// Description, encryption requests declined first, bytes to send, and the client's behaviour after them.
type Case = (&'static str, Vec<[u8; 8]>, Vec<u8>, Then);

/// Sends the encryption requests of `declined`, which must be declined, then `bytes`. Returns the rest of the reply
/// as a driver would parse it.
fn answer(endpoint: &Endpoint, declined: &[[u8; 8]], bytes: &[u8], then: Then) -> Vec<Message> {
    let mut wire = Wire::connect(endpoint);
    for request in declined {
        wire.send_bytes(request);
        assert_eq!(wire.read_byte(), Some(b'N'));
    }
    wire.send_bytes(bytes);
    if then == Then::HalfCloses {
        wire.shut_down_writing();
    }
    wire.until_closed()
}

/// Severity, SQLSTATE and message of each, or its type.
fn words(messages: &[Message]) -> Vec<String> {
    let words = |message: &Message| match message.tag {
        b'E' => format!(
            "{} {} {}",
            message.severity(),
            message.sqlstate(),
            message.field(b'M').unwrap_or_default()
        ),
        0 => String::from("closed"),
        tag => char::from(tag).to_string(),
    };
    messages.iter().map(words).collect()
}

#[test]
fn what_is_no_startup_packet_is_answered_as_by_postgresql() {
    use Then::{HalfCloses, Waits};
    let stage = Stage::start();
    let whole = startup_packet(PROTOCOL_3_0, &[("user", "postgres")]);
    let waits = |what, bytes: &[u8]| (what, vec![], bytes.to_vec(), Waits);
    let after = |what, declined: &[[u8; 8]], bytes: &[u8], then| {
        (what, declined.to_vec(), bytes.to_vec(), then)
    };
    let startup = |body| packet(PROTOCOL_3_0, body);
    let get = b"GET / HTTP/1.1\r\nHost: db\r\n\r\n";
    let unknown = startup_packet(PROTOCOL_3_0, &[("user", "nobody_at_all")]);
    let mut cases: Vec<Case> = vec![
        after("nothing", &[], b"", HalfCloses),
        waits("a web client", get),
        waits("a TLS client", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"),
        waits("an SSH client", b"SSH-2.0-OpenSSH_9.2\r\n"),
        waits(
            "a client of PROXY v1",
            b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
        ),
        waits("protocol 2", &packet(2 << 16, b"postgres\0")),
        waits("protocol 4", &packet(4 << 16, b"user\0postgres\0\0")),
        waits("no terminator", &startup(b"user\0postgres\0")),
        waits(
            "text behind the terminator",
            &startup(b"user\0postgres\0\0more\0"),
        ),
        waits("no user", &startup(b"database\0postgres\0\0")),
        waits("no parameters", &startup(b"\0")),
        waits("a cancel request without a key", &cancel_request(b"")),
        waits("a cancel request with half a key", &cancel_request(&[0; 4])),
        waits("a cancel request for nobody", &cancel_request(&[0; 8])),
        after("SSL, then nothing", &[SSL_REQUEST], b"", HalfCloses),
        after(
            "SSL and GSS, then nothing",
            &[SSL_REQUEST, GSSENC_REQUEST],
            b"",
            HalfCloses,
        ),
        after("SSL, then nonsense", &[SSL_REQUEST], get, Waits),
        after(
            "SSL, then a cut packet",
            &[SSL_REQUEST],
            &whole[..6],
            HalfCloses,
        ),
        after("SSL twice", &[SSL_REQUEST], &SSL_REQUEST, Waits),
        after("GSS twice", &[GSSENC_REQUEST], &GSSENC_REQUEST, Waits),
        waits("an unknown user", &unknown),
    ];
    for length in [0, 1, 4, 7, 10_005, i32::MAX, -1, i32::MIN] {
        let bytes = [length.to_be_bytes(), PROTOCOL_3_0.to_be_bytes()].concat();
        cases.push(("a bad length", vec![], bytes, Waits));
    }
    for end in [1, 3, 4, 5, 8, 9, 14, whole.len() - 1] {
        cases.push(("a cut packet", vec![], whole[..end].to_vec(), HalfCloses));
    }
    let endpoint = stage.proxy.endpoint();
    let ask = |endpoint: &Endpoint, (_, declined, bytes, then): &Case| {
        words(&answer(endpoint, declined, bytes, *then))
    };
    // Over the socket it also declines GSSAPI encryption, which Debian's server supports.
    let direct = |case: &_| {
        let words = ask(&stage.postgres.socket(), case);
        // The proxy knows 3.2 before PostgreSQL 18 does.
        let newest = |word: String| word.replace("3.0 to 3.0", "3.0 to 3.2");
        words.into_iter().map(newest).collect::<Vec<_>>()
    };
    // An operator is told of a header in the wrong place: tests/it/proxy_protocol.rs.
    let (header, cases): (Vec<_>, Vec<_>) = cases
        .iter()
        .partition(|(_, _, bytes, _)| bytes.starts_with(b"PROXY"));
    let (silent, answered): (Vec<_>, Vec<_>) = cases
        .into_iter()
        .partition(|case| direct(case) == ["closed"]);
    assert!(silent.len() > 10 && answered.len() > 5);
    // If PostgreSQL sends nothing, the log has nothing either.
    let before = output_at_start(&stage);
    for case in silent {
        assert_eq!(ask(&endpoint, case), ["closed"], "{case:?}");
    }
    std::thread::sleep(A_LINE_LATER);
    assert_eq!(stage.proxy.output(), before);
    for case in header.into_iter().chain(answered) {
        assert_eq!(ask(&endpoint, case), direct(case), "{case:?}");
    }
    stage.plain().ok("SELECT 1");
}

/// The proxy's log once it says that it serves, which it does after it listens.
fn output_at_start(stage: &Stage) -> String {
    wait_for("the proxy to say that it serves", || {
        let output = stage.proxy.output();
        output.contains("pgpalisade serves").then_some(output)
    })
}

/// Clients that reset their connection, as haproxy does to save a port, even in the middle of a login.
#[test]
fn connections_that_are_reset_make_no_noise() {
    let stage = Stage::start();
    let Endpoint::Tcp(address) = stage.proxy.endpoint() else {
        unreachable!("the proxy listens on TCP");
    };
    let whole = startup_packet(PROTOCOL_3_0, &[("user", "postgres")]);
    let before = output_at_start(&stage);
    for bytes in [&b""[..], &whole[..5], &SSL_REQUEST, &whole] {
        for reads in [false, true] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(bytes).unwrap();
            if reads && bytes.len() >= 8 {
                stream.read_exact(&mut [0]).unwrap();
            }
            set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            drop(stream);
        }
    }
    wait_until("the sessions to end", || {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE client_addr IS NOT NULL";
        stage.value(sessions) == "0"
    });
    stage.plain().ok("SELECT 1");
    std::thread::sleep(A_LINE_LATER);
    assert_eq!(stage.proxy.output(), before);
}

/// haproxy in front of the proxy, with both of its checks.
#[test]
fn the_checks_of_haproxy_make_no_noise() {
    let stage = Stage::start();
    let dir = scratch_dir();
    let socket = dir.path().join("stats");
    let server = format!(
        "127.0.0.1:{} check inter 20ms",
        stage.proxy.endpoint().port()
    );
    let settings = format!(
        "global\n  stats socket {} mode 666\n\
         defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 5s\n  timeout server 5s\n\
         backend tcp\n  option tcp-check\n  server one {server}\n\
         backend known\n  option pgsql-check user postgres\n  server one {server}\n\
         backend unknown\n  option pgsql-check user haproxy\n  server one {server}\n",
        socket.display()
    );
    let before = output_at_start(&stage);
    let mut command = haproxy(dir.path(), &settings);
    let log = dir.path().join("log");
    let haproxy = Running::spawn(&mut command, log.clone(), TERM);
    let _haproxy = haproxy.expect("haproxy; run scripts/install-packages");
    let status = |line: &str| line.split(',').nth(36).unwrap_or_default().to_owned();
    wait_for("haproxy to find three living servers", || {
        let mut stream = UnixStream::connect(&socket).ok()?;
        stream.write_all(b"show stat\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let servers = text.lines().filter(|line| line.contains(",one,"));
        let states: Vec<String> = servers.map(status).collect();
        (states == ["L4OK", "L7OK", "L7OK"]).then_some(())
    });
    // Enough for some dozen further checks.
    std::thread::sleep(A_LINE_LATER * 2);
    let found = stage.proxy.output();
    assert_eq!(found, before, "{:?}", std::fs::read_to_string(log));
    stage.plain().ok("SELECT 1");
}
