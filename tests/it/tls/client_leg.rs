//! TLS to clients: what they may and must request, and attacks in the middle.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::{assert_says, assert_within, free_port};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::programs::stdout;
use pgpalisade_test_servers::proxy::{Options, Proxy, subcommand};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::tls::{Authority, TlsClient, Validity, reload};
use pgpalisade_test_servers::wire::{
    Endpoint, Message, PROTOCOL_3_0, SSL_REQUEST, TRUSTED, Wire, as_of_18, assert_error,
    cancel_request, pretty, startup_packet, trusted,
};

use super::{proxy, psql, refused, with_tls};

const GSSENC_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 48];

struct Scene {
    proxy: Proxy,
    _postgres: Postgres,
    authority: Authority,
}

impl Scene {
    fn new(mode: &str) -> Self {
        Self::with_flags(mode, &[])
    }

    fn with_flags(mode: &str, flags: &[(&str, &str)]) -> Self {
        let postgres = Postgres::start();
        let authority = Authority::new();
        let pair = authority.issue_local("proxy");
        let options = with_tls(Options::new(&postgres), mode, &pair).flags(flags);
        Self {
            proxy: Proxy::start_with(options),
            _postgres: postgres,
            authority,
        }
    }

    fn endpoint(&self) -> Endpoint {
        self.proxy.endpoint()
    }

    /// Asserts that the proxy still works.
    #[track_caller]
    fn assert_serves(&self) {
        let client = self.authority.client();
        Wire::login_tls(&self.endpoint(), &client, &TRUSTED).ok("SELECT 1");
    }
}

#[test]
fn every_sslmode_of_libpq() {
    let scene = Scene::new("require");
    let trusted = scene.authority.certificate().display().to_string();
    let stranger = Authority::new();
    let other = stranger.certificate().display().to_string();
    let connect = |mode: &str, root: &str, version: &str| {
        let variables = [
            ("PGSSLMODE", mode),
            ("PGSSLROOTCERT", root),
            ("PGSSLMINPROTOCOLVERSION", version),
            ("PGSSLMAXPROTOCOLVERSION", version),
        ];
        psql(&scene.endpoint(), &variables, "\\conninfo\nSELECT 1")
    };
    for version in ["TLSv1.2", "TLSv1.3"] {
        for mode in ["allow", "prefer", "require", "verify-ca", "verify-full"] {
            let root = if mode.starts_with('v') {
                &trusted
            } else {
                "/none"
            };
            let said = stdout(&connect(mode, root, version));
            // psql 18 shows a table, others a sentence.
            let shown = said.lines().find(|line| line.contains(version));
            assert!(
                shown.is_some_and(|line| line.contains("rotocol")),
                "{mode}: {said}"
            );
        }
    }
    for mode in ["verify-ca", "verify-full"] {
        let said = refused(&connect(mode, &other, "TLSv1.3"));
        assert!(said.contains("certificate verify failed"), "{said}");
    }
    let said = refused(&connect("disable", "/none", "TLSv1.3"));
    let words = "FATAL:  28000: pgpalisade accepts TLS only: host \"127.0.0.1\", user \"postgres\", database \
                 \"postgres\", no encryption";
    assert!(said.contains(words), "{said}");
}

#[test]
fn a_name_that_is_not_the_proxys() {
    let postgres = Postgres::start();
    let authority = Authority::new();
    let proxy = proxy(
        &postgres,
        "require",
        &authority.issue("proxy", &["db.example"], Validity::Now),
    );
    let root = authority.certificate().display().to_string();
    let connect = |mode| {
        psql(
            &proxy.endpoint(),
            &[("PGSSLMODE", mode), ("PGSSLROOTCERT", &root)],
            "SELECT 1",
        )
    };
    assert_eq!(stdout(&connect("verify-ca")), "1\n");
    let said = refused(&connect("verify-full"));
    assert!(said.contains("does not match host name"), "{said}");
}

/// Without TLS, or if it is optional, sessions in the clear work as before.
#[test]
fn sessions_in_the_clear() {
    let scene = Scene::new("allow");
    Wire::login(&scene.endpoint(), &TRUSTED).ok("SELECT 1");
    scene.assert_serves();
    let off = Stage::start();
    let mut wire = Wire::connect(&off.proxy.endpoint());
    wire.send_bytes(&SSL_REQUEST);
    assert_eq!(wire.read_byte(), Some(b'N'));
}

/// As PostgreSQL answers: once each, and neither within the other.
#[test]
fn requests_in_turn() {
    let scene = Scene::new("require");
    let client = scene.authority.client();
    let mut wire = Wire::connect(&scene.endpoint());
    wire.send_bytes(&GSSENC_REQUEST);
    assert_eq!(wire.read_byte(), Some(b'N'));
    wire.send_bytes(&SSL_REQUEST);
    assert_eq!(wire.read_byte(), Some(b'S'));
    let mut wire = wire.encrypt(&client).unwrap();
    wire.startup(PROTOCOL_3_0, &TRUSTED);
    assert_eq!(wire.until_ready().last().unwrap().tag, b'Z');
    for (request, version) in [(SSL_REQUEST, "1234.5679"), (GSSENC_REQUEST, "1234.5680")] {
        let mut wire = Wire::connect_tls(&scene.endpoint(), &client).unwrap();
        wire.send_bytes(&request);
        let answer = wire.until_closed();
        assert_eq!(answer[0].sqlstate(), "0A000", "{}", pretty(&answer));
        assert!(pretty(&answer).contains(version), "{}", pretty(&answer));
    }
    // Without TLS on either side PostgreSQL sends the same, byte for byte.
    let off = Stage::start();
    let twice = |endpoint: Endpoint| {
        let mut wire = Wire::connect(&endpoint);
        wire.send_bytes(&SSL_REQUEST);
        assert_eq!(wire.read_byte(), Some(b'N'));
        wire.send_bytes(&SSL_REQUEST);
        let text = |message: &Message| message.field(b'M').as_deref().map(as_of_18);
        let said = |message: &Message| (message.sqlstate(), text(message));
        said(&wire.until_closed()[0])
    };
    assert_eq!(twice(off.proxy.endpoint()), twice(off.postgres.tcp()));
}

/// Bytes between the request and the handshake do not come from the client of the handshake (CVE-2021-23214).
#[test]
fn bytes_in_front_of_the_handshake() {
    let scene = Scene::new("allow");
    let startup = startup_packet(PROTOCOL_3_0, &TRUSTED);
    for stuffed in [startup.as_slice(), b"\x16\x03\x01", b"Q"] {
        let mut wire = Wire::connect(&scene.endpoint());
        wire.send_bytes(&[SSL_REQUEST.as_slice(), stuffed].concat());
        let answer = wire.until_closed();
        assert_eq!(answer[0].sqlstate(), "08P01", "{}", pretty(&answer));
        assert!(pretty(&answer).contains("received unencrypted data after SSL request"));
    }
    // Nor after a handshake: unencrypted bytes are not accepted.
    let mut wire = Wire::connect(&scene.endpoint());
    wire.send_bytes(&SSL_REQUEST);
    assert_eq!(wire.read_byte(), Some(b'S'));
    wire.send_bytes(&startup);
    assert_eq!(wire.read_byte(), Some(0x15), "an alert");
    scene.assert_serves();
}

#[test]
fn tls_without_asking() {
    let scene = Scene::new("require");
    let client = scene.authority.client();
    let direct = |client: &TlsClient| Wire::connect(&scene.endpoint()).encrypt(client);
    let mut wire = direct(&client.clone().speaking(&["postgresql"])).unwrap();
    wire.startup(PROTOCOL_3_0, &TRUSTED);
    assert_eq!(wire.until_ready().last().unwrap().tag, b'Z');
    // A client that names no protocol, or only others, may have meant another server.
    let mut wire = direct(&client).unwrap();
    wire.startup(PROTOCOL_3_0, &TRUSTED);
    let answer = wire.until_closed();
    assert!(answer[0].is_closed(), "{}", pretty(&answer));
    assert!(direct(&client.clone().speaking(&["h2", "http/1.1"])).is_err());
    assert!(Wire::connect_tls(&scene.endpoint(), &client.clone().speaking(&["h2"])).is_err());
    // Without TLS the connection is closed silently.
    let off = Stage::start();
    assert!(
        Wire::connect(&off.proxy.endpoint())
            .encrypt(&client)
            .is_err()
    );
    scene.assert_serves();
}

/// Invalid handshakes neither stop the proxy, nor keep it busy, nor get a message in the clear.
#[test]
fn handshakes_that_are_none() {
    let scene = Scene::new("require");
    let hello = [22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
    let endless: Vec<u8> = hello
        .iter()
        .copied()
        .chain(std::iter::repeat_n(0, 0x4000 - 4))
        .collect();
    for garbage in [
        b"\x16\x03\x01\x00\x02hi".repeat(10),
        vec![0x16; 70_000],
        endless.repeat(50),
        b"\x15\x03\x03\x00\x02\x02\x28".to_vec(),
    ] {
        for asks in [true, false] {
            let mut wire = Wire::connect(&scene.endpoint());
            wire.set_patience(Duration::from_secs(5));
            if asks {
                wire.send_bytes(&SSL_REQUEST);
                assert_eq!(wire.read_byte(), Some(b'S'));
            }
            wire.send_bytes(&garbage);
            wire.shut_down_writing();
            // At most an alert, and then the end.
            let first = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wire.read_byte()));
            assert!(matches!(first, Err(_) | Ok(None | Some(0x15))), "{first:?}");
        }
    }
    scene.assert_serves();
}

/// An endless handshake is limited like an endless login.
#[test]
fn slow_handshakes() {
    let scene = Scene::with_flags("require", &[("--login-timeout", "1s")]);
    let begin = Instant::now();
    let mut wire = Wire::connect(&scene.endpoint());
    wire.send_bytes(&SSL_REQUEST);
    assert_eq!(wire.read_byte(), Some(b'S'));
    let hello = [22, 3, 1, 2, 0, 1, 0, 1, 0xfc];
    for byte in hello.iter().cycle() {
        if wire.try_send_bytes(&[*byte]).is_err() || begin.elapsed() > Duration::from_secs(8) {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_within(begin, Duration::from_secs(5));
    scene.assert_serves();
}

#[test]
fn cancel_requests() {
    let scene = Scene::new("require");
    let client = scene.authority.client();
    for encrypted in [true, false] {
        let mut wire = Wire::login_tls(&scene.endpoint(), &client, &TRUSTED);
        let key = wire.backend_key().to_vec();
        wire.send(&pgpalisade_test_servers::wire::Batch::new().query("SELECT pg_sleep(30)"));
        std::thread::sleep(Duration::from_millis(300));
        let mut other = if encrypted {
            Wire::connect_tls(&scene.endpoint(), &client).unwrap()
        } else {
            Wire::connect(&scene.endpoint())
        };
        other.send_bytes(&cancel_request(&key));
        assert!(other.until_closed()[0].is_closed());
        assert_error(&wire.until_ready(), "57014");
    }
}

/// A result far larger than any buffer, to a client that starts reading late, and texts as large.
#[test]
fn much_in_both_directions() {
    let scene = Scene::new("require");
    let mut wire = Wire::login_tls(
        &scene.endpoint(),
        &scene.authority.client(),
        &trusted(&[("fencing.token", "1")]),
    );
    wire.send(
        &pgpalisade_test_servers::wire::Batch::new()
            .query("SELECT i, repeat('x', 1000) FROM generate_series(1, 30000) i"),
    );
    std::thread::sleep(Duration::from_millis(500));
    let answer = wire.until_ready();
    let rows: Vec<_> = answer
        .iter()
        .filter(|message| message.tag == b'D')
        .collect();
    assert_eq!(rows.len(), 30_000);
    assert!(
        rows.iter()
            .zip(1..)
            .all(|(row, i)| row.row()[0] == i.to_string())
    );
    let text = "y".repeat(900_000);
    wire.ok("CREATE TABLE t (v text)");
    for _ in 0..5 {
        wire.ok(&format!("INSERT INTO t VALUES ('{text}')"));
    }
    assert_eq!(wire.rows("SELECT sum(length(v)) FROM t"), [["4500000"]]);
}

#[test]
fn certificates_of_clients() {
    let postgres = Postgres::start();
    let authority = Authority::new();
    let pair = authority.issue_local("proxy");
    let ca = authority.certificate().display().to_string();
    let start = |required: &str| {
        let options = with_tls(Options::new(&postgres), "require", &pair)
            .flag("--tls-client-ca", &ca)
            .flag("--tls-client-certificates", required);
        Proxy::start_with(options)
    };
    let (own, late) = (
        authority.issue("client", &["client"], Validity::Now),
        authority.issue("late", &["late"], Validity::Past),
    );
    let stranger = Authority::new();
    let foreign = stranger.issue("foreign", &["foreign"], Validity::Now);
    let none = TlsClient::new(&authority.certificate(), None);
    let with = |pair| TlsClient::new(&authority.certificate(), Some(pair));
    let login = |proxy: &Proxy, client: &TlsClient| {
        let Ok(mut wire) = Wire::connect_tls(&proxy.endpoint(), client) else {
            return "no TLS".to_owned();
        };
        wire.startup(PROTOCOL_3_0, &TRUSTED);
        match wire.try_read() {
            Ok(message) if message.is_closed() => "no TLS".to_owned(),
            Ok(message) if message.tag == b'E' => message.sqlstate(),
            Ok(_) => "session".to_owned(),
            Err(_) => "no TLS".to_owned(),
        }
    };
    let check = |proxy: &Proxy, without: &str| {
        assert_eq!(login(proxy, &none), without);
        assert_eq!(login(proxy, &with(&own)), "session");
        assert_eq!(login(proxy, &with(&late)), "no TLS");
        assert_eq!(login(proxy, &with(&foreign)), "no TLS");
    };
    check(&start("optional"), "session");
    let required = start("required");
    check(&required, "28000");
    // In libpq's words.
    let root = [("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", ca.as_str())];
    let said = refused(&psql(&required.endpoint(), &root, "SELECT 1"));
    assert_says(&said, "connection requires a valid client certificate");
    let (certificate, key) = (
        own.certificate.display().to_string(),
        own.key.display().to_string(),
    );
    let shown = [
        ("PGSSLCERT", certificate.as_str()),
        ("PGSSLKEY", key.as_str()),
    ];
    let variables = [root.as_slice(), &shown].concat();
    let found = stdout(&psql(&required.endpoint(), &variables, "SELECT 1"));
    assert_eq!(found, "1\n");
}

/// New connections see the new certificate. An invalid file changes nothing, and is logged.
#[test]
fn certificates_are_read_again() {
    let scene = Scene::new("require");
    let endpoint = scene.endpoint();
    let mut old = Wire::login_tls(&endpoint, &scene.authority.client(), &TRUSTED);
    let key = scene.authority.path("proxy.key");
    let good = std::fs::read(&key).unwrap();
    std::fs::write(&key, "no key").unwrap();
    assert!(reload(&scene.proxy).contains("stay in force"));
    scene.assert_serves();
    std::fs::write(&key, good).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(reload(&scene.proxy).contains("has group or world access"));
    scene.assert_serves();
    // Another certificate, for another name.
    scene
        .authority
        .issue("proxy", &["db.example"], Validity::Now);
    assert!(reload(&scene.proxy).contains("new connections use them"));
    assert!(Wire::connect_tls(&endpoint, &scene.authority.client()).is_err());
    old.ok("SELECT 1");
    scene.authority.issue_local("proxy");
    reload(&scene.proxy);
    scene.assert_serves();
}

#[test]
fn files_that_are_not_sound_keep_it_from_starting() {
    let authority = Authority::new();
    let (one, two) = (authority.issue_local("one"), authority.issue_local("two"));
    let start = |certificate: &str, key: &str| {
        let mut serve = subcommand("serve");
        serve.args(["--listen", &format!("127.0.0.1:{}", free_port())]);
        serve.args([
            "--upstream",
            "/nowhere",
            "--authority",
            "embedded:/nowhere",
            "--tls-mode",
            "allow",
        ]);
        serve.args(["--tls-certificate", certificate, "--tls-key", key]);
        let output = serve.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let show = |path: &std::path::Path| path.display().to_string();
    let said = start(&show(&one.certificate), &show(&two.key));
    assert!(said.contains("cannot be used"), "{said}");
    let said = start("/nowhere/crt", &show(&one.key));
    assert!(said.contains("cannot read /nowhere/crt"), "{said}");
    std::fs::set_permissions(&one.key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let said = start(&show(&one.certificate), &show(&one.key));
    assert!(said.contains("has group or world access"), "{said}");
}
