//! The PROXY protocol: whose statement of a client's address counts.

use pgpalisade_test_servers::machine::{self, Running, TERM, wait_for};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir};
use pgpalisade_test_servers::programs::haproxy;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::tls::Authority;
use pgpalisade_test_servers::wire::{
    Endpoint, PROTOCOL_3_0, TRUSTED, Wire, errors, startup_packet,
};

const LINE: &[u8] = b"PROXY TCP4 10.1.2.3 10.0.0.1 5000 6432\r\n";

/// Writes are free for 10.1.2.3 only.
fn proxy(postgres: &Postgres, networks: &str, policy: &PolicyFile) -> Proxy {
    let options = Options::new(postgres)
        .flag("--proxy-protocol", networks)
        .policy(policy);
    Proxy::start_with(options)
}

fn policy() -> PolicyFile {
    PolicyFile::new("[[session]]\nmatch = { network = \"10.1.2.3\" }\nwrites = \"allow\"\n")
}

/// Result of a write after these bytes.
fn write(proxy: &Proxy, header: &[u8]) -> String {
    let mut wire = Wire::connect(&proxy.endpoint());
    wire.send_bytes(&[header, &startup_packet(PROTOCOL_3_0, &TRUSTED)].concat());
    let answer = wire.until_ready();
    if answer
        .last()
        .is_some_and(pgpalisade_test_servers::wire::Message::is_closed)
    {
        assert_eq!(answer.len(), 1, "closed without a word");
        return "closed".to_owned();
    }
    errors(&wire.query("CREATE TEMP TABLE t ()")).concat()
}

fn binary(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).unwrap().to_be_bytes();
    [
        b"\r\n\r\n\0\r\nQUIT\n".as_slice(),
        &[command, family],
        &len,
        body,
    ]
    .concat()
}

#[test]
fn the_address_of_a_trusted_load_balancer_is_the_clients() {
    let postgres = Postgres::start();
    let policy = policy();
    let proxy = proxy(&postgres, "127.0.0.0/8", &policy);
    // Missing, repeated or truncated headers: nothing is guessed, and the client is told nothing.
    assert_eq!(write(&proxy, b""), "closed");
    let told = wait_for("a line of the log", || {
        let output = proxy.output();
        output
            .contains("let the load balancer send one")
            .then_some(output)
    });
    assert!(told.contains("\"client_addr\":\"127.0.0.1:"), "{told}");
    assert_eq!(write(&proxy, &[LINE, LINE].concat()), "closed");
    assert_eq!(write(&proxy, b"PROXY TCP4 10.1.2.3\r\n"), "closed");
    assert_eq!(write(&proxy, &binary(0x21, 0x11, &[0; 9000])), "closed");
    let mut wire = Wire::connect(&proxy.endpoint());
    wire.send_bytes(&LINE[..10]);
    wire.shut_down_writing();
    assert!(wire.until_closed()[0].is_closed());
    // Once is enough.
    assert_eq!(proxy.output(), told);
    assert_eq!(write(&proxy, LINE), "");
    let found = write(&proxy, b"PROXY TCP4 10.1.2.4 10.0.0.1 5000 6432\r\n");
    assert_eq!(found, "PF002");
    let v4 = [10, 1, 2, 3, 10, 0, 0, 1, 0x13, 0x88, 0x19, 0x20];
    assert_eq!(write(&proxy, &binary(0x21, 0x11, &v4)), "");
    // The load balancer's own connection, and one of unknown origin: the peer address counts.
    assert_eq!(write(&proxy, &binary(0x20, 0x11, &v4)), "PF002");
    assert_eq!(write(&proxy, b"PROXY UNKNOWN\r\n"), "PF002");
    let records = proxy.first_rejections(3);
    assert_eq!(records[0]["client_addr"], "10.1.2.4:5000");
    let own = records[1]["client_addr"].as_str().unwrap();
    assert!(own.starts_with("127.0.0.1:"), "{own}");
    // It may arrive byte by byte.
    let mut wire = Wire::connect(&proxy.endpoint());
    for byte in LINE {
        wire.send_bytes(&[*byte]);
    }
    wire.startup(PROTOCOL_3_0, &TRUSTED);
    wire.until_ready();
    wire.ok("CREATE TEMP TABLE t ()");
}

/// Anybody can write such a header.
#[test]
fn from_elsewhere_a_header_is_nonsense() {
    let postgres = Postgres::start();
    let policy = policy();
    let proxy = proxy(&postgres, "10.0.0.0/8", &policy);
    assert_eq!(write(&proxy, LINE), "closed");
    let told = wait_for("a line of the log", || {
        let output = proxy.output();
        let advice = "add the load balancer's network to proxy_protocol";
        output.contains(advice).then_some(output)
    });
    let v4 = [10, 1, 2, 3, 10, 0, 0, 1, 0x13, 0x88, 0x19, 0x20];
    assert_eq!(write(&proxy, &binary(0x21, 0x11, &v4)), "closed");
    assert_eq!(proxy.output(), told);
    assert_eq!(write(&proxy, b""), "PF002");
}

/// haproxy in front, with both versions, and TLS after the header.
#[test]
fn haproxy_tells_where_a_client_is() {
    let postgres = Postgres::start();
    let authority = Authority::new();
    let pair = authority.issue_local("proxy");
    let options = Options::new(&postgres)
        .flag("--proxy-protocol", "127.0.0.1")
        .flag("--tls-mode", "allow")
        .flag("--tls-certificate", &pair.certificate.display().to_string())
        .flag("--tls-key", &pair.key.display().to_string());
    let proxy = Proxy::start_with(options);
    for version in ["send-proxy", "send-proxy-v2"] {
        let (dir, port) = (scratch_dir(), machine::free_port());
        let settings = format!(
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\n\
             frontend clients\n  bind 127.0.0.1:{port}\n  default_backend servers\n\
             backend servers\n  option pgsql-check user postgres\n  \
             server one 127.0.0.1:{} {version} check check-send-proxy inter 50ms source 127.0.0.1\n",
            proxy.endpoint().port()
        );
        let mut command = haproxy(dir.path(), &settings);
        let haproxy = Running::spawn(&mut command, dir.path().join("log"), TERM);
        let _haproxy = haproxy.expect("haproxy; run scripts/install-packages");
        let endpoint = Endpoint::Tcp(([127, 0, 0, 1], port).into());
        wait_for("haproxy to listen", || Wire::try_connect(&endpoint).ok());
        let before = proxy.rejections().len();
        let mut wire = Wire::login_tls(&endpoint, &authority.client(), &TRUSTED);
        wire.fails("CREATE TEMP TABLE t ()", "PF002");
        let records = proxy.first_rejections(before + 1);
        // The client's own port, which only haproxy sees.
        let address = records.last().unwrap()["client_addr"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_eq!(address, wire.local_address().to_string());
    }
}
