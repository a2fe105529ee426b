//! Events on a connection between two messages of its client.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::assert_within;
use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::tls::{Authority, Pair, reload};
use pgpalisade_test_servers::wire::{Batch, PROTOCOL_3_0, TRUSTED, Wire, startup_packet};

use super::{proxy, server_with, upstream, with_tls};

/// TLS 1.2 lets a client request another handshake. The refusal does not wait until the server sends something.
#[test]
fn a_request_for_renegotiation_is_answered_at_once() {
    let postgres = Postgres::start();
    let authority = Authority::new();
    let proxy = proxy(&postgres, "require", &authority.issue_local("proxy"));
    let address = format!("127.0.0.1:{}", proxy.endpoint().port());
    let mut client = Command::new("openssl")
        .args([
            "s_client",
            "-tls1_2",
            "-starttls",
            "postgres",
            "-connect",
            &address,
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = client.stdin.take().unwrap();
    let mut stdout = client.stdout.take().unwrap();
    stdin
        .write_all(&startup_packet(PROTOCOL_3_0, &TRUSTED))
        .unwrap();
    let mut said = Vec::new();
    let ready = [b'Z', 0, 0, 0, 5, b'I'];
    while !said.windows(6).any(|part| part == ready) {
        let mut chunk = [0; 4096];
        let read = stdout.read(&mut chunk).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&chunk[..read]);
    }
    let asked = Instant::now();
    stdin.write_all(b"R\n").unwrap();
    let output = client.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no renegotiation"), "{said}");
    assert_within(asked, Duration::from_secs(5));
    drop(stdin);
}

/// Reading a pipe waits for its writer. Logins do not.
#[test]
fn a_pipe_in_the_place_of_a_certificate_holds_up_nobody() {
    let postgres = Postgres::start();
    let authority = Authority::new();
    let pair = authority.issue_local("proxy");
    let proxy = proxy(&postgres, "require", &pair);
    std::fs::remove_file(&pair.certificate).unwrap();
    let made = Command::new("mkfifo")
        .arg(&pair.certificate)
        .status()
        .unwrap();
    assert!(made.success());
    let said = reload(&proxy);
    assert!(said.contains("is not a regular file"), "{said}");
    Wire::login_tls(&proxy.endpoint(), &authority.client(), &TRUSTED).ok("SELECT 1");
}

/// A client may bind its login to the certificate that it was shown, whatever was loaded since.
#[test]
fn channel_binding_is_judged_by_the_certificate_that_was_shown() {
    let authority = Authority::new();
    let of_server = authority.issue_local("server");
    let postgres = server_with(&authority, Auth::Scram, &of_server);
    postgres.sql("CREATE ROLE app LOGIN PASSWORD 'x'");
    let read = |pair: &Pair| {
        (
            std::fs::read(&pair.certificate).unwrap(),
            std::fs::read(&pair.key).unwrap(),
        )
    };
    let servers = read(&of_server);
    let shown = authority.issue_local("shown");
    let own = read(&shown);
    let show = |files: &(Vec<u8>, Vec<u8>)| {
        std::fs::write(&shown.certificate, &files.0).unwrap();
        std::fs::write(&shown.key, &files.1).unwrap();
    };
    show(&servers);
    let mut options = Options::new(&postgres);
    options.upstream = upstream(&postgres, "127.0.0.1", "sslmode=require");
    let proxy = Proxy::start_with(with_tls(options, "require", &shown));
    let connect = || Wire::connect_tls(&proxy.endpoint(), &authority.client()).unwrap();
    // Result of a bound login: the server continues with it, or the proxy refuses it.
    let bind = |mut wire: Wire| {
        wire.startup(PROTOCOL_3_0, &[("user", "app"), ("database", "postgres")]);
        assert_eq!(wire.read().tag, b'R');
        let first = b"p=tls-server-end-point,,n=,r=abcdefghijklmnop";
        let len = u32::try_from(first.len()).unwrap().to_be_bytes();
        let answer = [b"SCRAM-SHA-256-PLUS\0".as_slice(), &len, first].concat();
        wire.send(&Batch::new().message(b'p', &answer));
        let message = wire.read();
        match message.tag {
            b'E' => message.sqlstate(),
            tag => char::from(tag).to_string(),
        }
    };
    let before = connect();
    show(&own);
    reload(&proxy);
    let after = connect();
    assert_eq!(bind(before), "R");
    show(&servers);
    reload(&proxy);
    assert_eq!(bind(after), "28000");
    assert_eq!(bind(connect()), "R");
}
