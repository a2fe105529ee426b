//! TLS to PostgreSQL, with libpq's meaning of `sslmode`: for sessions, the control connection, cancel requests and
//! the store.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use pgpalisade_test_servers::machine::wait_for;
use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::proxy::{Options, Proxy, Store};
use pgpalisade_test_servers::stage::leader;
use pgpalisade_test_servers::tls::{Authority, Validity};
use pgpalisade_test_servers::wire::{
    Batch, Message, SSL_REQUEST, TRUSTED, Wire, assert_error, cancel_request, pretty,
};

use super::{ENCRYPTED, force_tls, server, server_with, upstream};

/// The control connection uses the unix socket, without TLS.
fn reached_by(postgres: &Postgres, host: &str, parameters: &str) -> Proxy {
    let mut options = Options::new(postgres).with_own_role(postgres);
    options.upstream = upstream(postgres, host, parameters);
    Proxy::start_with(options)
}

/// Whether a session is encrypted between proxy and server, or why it failed.
fn outcome(proxy: &Proxy) -> Result<bool, String> {
    let mut wire = Wire::open(&proxy.endpoint(), &[]);
    let answer = wire.until_ready();
    match answer.iter().find(|message| message.tag == b'E') {
        None => Ok(wire.rows(ENCRYPTED) == [["t"]]),
        Some(error) => {
            assert_eq!(error.sqlstate(), "08006", "{}", pretty(&answer));
            Err(logged(proxy))
        }
    }
}

/// The proxy's log of a failed connection. A separate thread writes it.
fn logged(proxy: &Proxy) -> String {
    wait_for("the log to say why", || {
        let log = proxy.output();
        let why = log
            .lines()
            .find(|line| line.contains("cannot connect to PostgreSQL"));
        why.map(str::to_owned)
    })
}

#[track_caller]
fn encrypted(postgres: &Postgres, host: &str, parameters: &str, expect: bool) {
    let proxy = reached_by(postgres, host, parameters);
    assert_eq!(outcome(&proxy), Ok(expect), "{host} {parameters}");
}

#[track_caller]
fn refused(postgres: &Postgres, host: &str, parameters: &str, part: &str) {
    let log = outcome(&reached_by(postgres, host, parameters)).unwrap_err();
    assert!(log.contains(part), "{host} {parameters}:\n{log}");
}

fn with_root(mode: &str, authority: &Authority) -> String {
    format!(
        "sslmode={mode}&sslrootcert={}",
        authority.certificate().display()
    )
}

#[test]
fn every_sslmode() {
    let authority = Authority::new();
    let postgres = server(&authority, Auth::Trust);
    for (parameters, expect) in [
        ("", false),
        ("sslmode=disable", false),
        ("sslmode=prefer", true),
        ("sslmode=require", true),
    ] {
        encrypted(&postgres, "127.0.0.1", parameters, expect);
    }
    for mode in ["require", "verify-ca", "verify-full"] {
        for host in ["127.0.0.1", "localhost"] {
            encrypted(&postgres, host, &with_root(mode, &authority), true);
        }
        refused(
            &postgres,
            "127.0.0.1",
            &with_root(mode, &Authority::new()),
            "UnknownIssuer",
        );
    }
    refused(
        &postgres,
        "127.0.0.1",
        "sslmode=verify-full&sslrootcert=system",
        "UnknownIssuer",
    );
}

#[test]
fn a_server_without_tls() {
    let postgres = Postgres::start();
    encrypted(&postgres, "127.0.0.1", "sslmode=prefer", false);
    refused(
        &postgres,
        "127.0.0.1",
        "sslmode=require",
        "does not support TLS",
    );
}

#[test]
fn a_certificate_in_another_name_or_of_another_time() {
    let authority = Authority::new();
    let elsewhere = authority.issue("elsewhere", &["db.example"], Validity::Now);
    let postgres = server_with(&authority, Auth::Trust, &elsewhere);
    encrypted(
        &postgres,
        "localhost",
        &with_root("verify-ca", &authority),
        true,
    );
    for host in ["localhost", "127.0.0.1"] {
        refused(
            &postgres,
            host,
            &with_root("verify-full", &authority),
            "not valid for name",
        );
    }
    let past = authority.issue("past", &["127.0.0.1"], Validity::Past);
    let postgres = server_with(&authority, Auth::Trust, &past);
    encrypted(&postgres, "127.0.0.1", "sslmode=require", true);
    for mode in ["require", "verify-ca", "verify-full"] {
        refused(
            &postgres,
            "127.0.0.1",
            &with_root(mode, &authority),
            "expired",
        );
    }
}

/// A server that requires a certificate gets the proxy's.
#[test]
fn a_certificate_of_ones_own() {
    let authority = Authority::new();
    let postgres = server(&authority, Auth::Trust);
    force_tls(&postgres, "trust clientcert=verify-ca");
    let own = authority.issue("own", &["own"], Validity::Now);
    let pair = format!(
        "sslmode=require&sslcert={}&sslkey={}",
        own.certificate.display(),
        own.key.display()
    );
    encrypted(&postgres, "127.0.0.1", &pair, true);
    let proxy = reached_by(&postgres, "127.0.0.1", "sslmode=require");
    let mut wire = Wire::open(&proxy.endpoint(), &[]);
    // PostgreSQL's own message, relayed.
    assert_eq!(
        wire.until_closed()[0].field(b'M').unwrap(),
        "connection requires a valid client certificate"
    );
}

/// By TCP the server accepts only encrypted connections, as with `rds.force_ssl`: everything works.
#[test]
fn a_server_that_takes_nothing_else() {
    let authority = Authority::new();
    let postgres = server(&authority, Auth::Trust);
    postgres.sql("CREATE DATABASE marks");
    force_tls(&postgres, "trust");
    let mut options = Options::new(&postgres);
    options.upstream = upstream(
        &postgres,
        "localhost",
        &with_root("verify-full", &authority),
    );
    // It has the upstream's address and TLS.
    options.control = "user=postgres dbname=postgres".to_owned();
    options.store = Store::Url(
        upstream(
            &postgres,
            "postgres@localhost",
            &with_root("verify-full", &authority),
        )
        .replace('?', "/marks?"),
    );
    let proxy = Proxy::start_with(options);
    postgres.sql("CREATE TABLE jobs (id int)");
    let encrypted = "SELECT count(*) FILTER (WHERE NOT ssl), count(*) > 2
                     FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
                     WHERE a.client_addr IS NOT NULL";
    assert_eq!(postgres.sql(encrypted), [["0", "t"]]);

    let mut old = leader(&proxy.endpoint(), "33");
    old.ok("INSERT INTO jobs VALUES (1)");
    leader(&proxy.endpoint(), "34").ok("INSERT INTO jobs VALUES (2)");
    old.fails("INSERT INTO jobs VALUES (3)", "PF001");
    assert_eq!(postgres.value("SELECT count(*) FROM jobs"), "2");

    let mut wire = Wire::login(&proxy.endpoint(), &TRUSTED);
    let key = wire.backend_key().to_vec();
    wire.send(&Batch::new().query("SELECT pg_sleep(30)"));
    std::thread::sleep(Duration::from_millis(300));
    Wire::connect(&proxy.endpoint()).send_bytes(&cancel_request(&key));
    assert_error(&wire.until_ready(), "57014");

    for name in ["check", "status"] {
        let output = proxy.subcommand(name).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{name}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(!said.contains("FAIL"), "{said}");
    }
    let dsn = |endpoint: &pgpalisade_test_servers::wire::Endpoint, tls: &str| {
        format!(
            "host=localhost port={} user=postgres dbname=postgres {tls}",
            endpoint.port()
        )
    };
    let tls = format!(
        "sslmode=verify-full sslrootcert='{}'",
        authority.certificate().display()
    );
    let mut bench = pgpalisade_test_servers::proxy::subcommand("bench");
    bench.args([
        "--direct",
        &dsn(&postgres.tcp(), &tls),
        "--proxied",
        &dsn(&proxy.endpoint(), ""),
    ]);
    let output = bench
        .args(["--token", "34", "--rounds", "1", "--round", "50ms"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// A unix socket has no TLS, whatever the URL says, as with libpq.
#[test]
fn a_unix_socket() {
    let postgres = Postgres::start();
    let mut options = Options::new(&postgres);
    let directory = postgres.socket_dir().display();
    options.upstream = format!(
        "postgres:///?host={directory}&port={}&sslmode=require",
        postgres.port()
    );
    options.control = "user=postgres dbname=postgres".to_owned();
    let options = options.with_own_role(&postgres);
    assert_eq!(outcome(&Proxy::start_with(options)), Ok(false));
}

/// First bytes of a client, sent to a server that answers its SSLRequest so.
fn hello_to(host: &str, answer: &'static [u8]) -> (Vec<u8>, Vec<Message>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        let mut request = [0; 8];
        stream.read_exact(&mut request).unwrap();
        assert_eq!(request, SSL_REQUEST);
        stream.write_all(answer).unwrap();
        let mut hello = vec![0; 4096];
        let read = stream.read(&mut hello).unwrap_or_default();
        hello.truncate(read);
        hello
    });
    let postgres = Postgres::start();
    let mut options = Options::new(&postgres);
    options.upstream = format!("postgres://{host}:{port}?sslmode=require");
    let proxy = Proxy::start_with(options);
    let mut wire = Wire::open(&proxy.endpoint(), &[]);
    let answer = wire.until_closed();
    (serving.join().unwrap(), answer, logged(&proxy))
}

/// Servers behind one address are told apart by the name (Neon, and others).
#[test]
fn the_name_goes_along() {
    let says = |hello: &[u8], name: &[u8]| hello.windows(name.len()).any(|part| part == name);
    let (hello, ..) = hello_to("localhost", b"S");
    assert_eq!(hello[0], 0x16);
    assert!(says(&hello, b"localhost") && says(&hello, b"postgresql"));
    let (hello, ..) = hello_to("127.0.0.1", b"S");
    assert_eq!(hello[0], 0x16);
    assert!(!says(&hello, b"127.0.0.1"));
}

/// Bytes along with the reply do not come from the server of the handshake, and an error's sender is unproven
/// (CVE-2021-23222, CVE-2024-10977).
#[test]
fn a_person_in_the_middle() {
    let error = b"E\0\0\0\x30SFATAL\0VFATAL\0C28000\0Msend me your password\0\0";
    for (answer, part) in [
        (b"S\x16\x03\x03\0\0".as_slice(), "received unencrypted data"),
        (b"NR\0\0\0\x08\0\0\0\0", "received unencrypted data"),
        (error, "did not answer the request for TLS"),
        (b"N", "does not support TLS"),
    ] {
        let (hello, said, log) = hello_to("127.0.0.1", answer);
        assert_eq!(hello, b"", "nothing more is said");
        assert_eq!(said[0].sqlstate(), "08006");
        assert!(!pretty(&said).contains("password") && !log.contains("password"));
        assert!(log.contains(part), "{log}");
    }
}
