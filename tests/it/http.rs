//! Health over HTTP, access rights, and slow, silent or hostile clients.

mod tls;

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::{
    Signal, assert_says, assert_within, signal, wait_for, wait_until,
};
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir};
use pgpalisade_test_servers::proxy::{Proxy, subcommand};
use pgpalisade_test_servers::stage::Stage;

/// Far above the duration of an undelayed scrape or probe.
const AT_ONCE: Duration = Duration::from_secs(3);

#[track_caller]
fn wait_until_ready(http: Http) {
    wait_until("the proxy to be ready", || {
        http.get("/readyz").status == 200
    });
}

#[track_caller]
fn wait_until_not_ready(http: Http, why: &str) {
    wait_until(why, || {
        let answer = http.get("/readyz");
        answer.status == 503 && answer.body.contains(why)
    });
    // It is alive all the same, and can be scraped.
    assert_eq!(http.get("/healthz").body, "alive\n");
    http.metrics();
}

#[test]
fn requests_and_their_answers() {
    let postgres = Postgres::start();
    let (http, _proxy) = Http::with_proxy(&postgres);
    let ask = |method: &str, path: &str| {
        let answer = http.ask(method, path, "");
        assert!(answer.head.contains("connection: close"), "{answer:?}");
        (answer.status, answer.body)
    };
    assert_eq!(ask("GET", "/healthz"), (200, "alive\n".to_owned()));
    assert_eq!(ask("GET", "/readyz"), (200, "ready\n".to_owned()));
    assert_eq!(ask("GET", "/readyz?verbose").0, 200);
    assert_eq!(ask("HEAD", "/metrics"), (200, String::new()));
    assert_eq!(ask("GET", "/nothing").0, 404);
    assert_eq!(ask("GET", "/metrics/").0, 404);
    assert_eq!(ask("POST", "/metrics").0, 405);
    let scrape = http.get("/metrics");
    let kind = "content-type: text/plain; version=0.0.4; charset=utf-8";
    assert!(scrape.head.contains(kind), "{}", scrape.head);
    // Requests that are not HTTP get HTTP's error, or no answer.
    let nonsense = http
        .send("\0\0\0\x08\x04\u{d2}\x16\x2f")
        .unwrap_or_default();
    assert!(!nonsense.contains(" 200 "), "{nonsense}");
    let many: String = (0..200)
        .map(|number| format!("x-{number}: y\r\n"))
        .collect();
    assert_eq!(http.ask("GET", "/metrics", &many).status, 431);
    // What only operators of the console see is not here, and a page of another host sees nothing.
    for table in ["config", "authority"] {
        assert_eq!(http.get(&format!("/api/v1/{table}")).status, 404);
    }
    let by_a_page = http.ask("GET", "/api/v1/picture", "Host: evil.example\r\n");
    assert_eq!(by_a_page.status, 421, "{by_a_page:?}");
}

/// While it drains it accepts no more clients, but can still be observed.
#[test]
fn a_drain_is_not_ready_and_is_seen_to_its_end() {
    let postgres = Postgres::start();
    postgres.sql("CREATE TABLE jobs (id int)");
    let http = Http::free();
    let options = http.options(&postgres).flag("--shutdown-grace", "1min");
    let stage = Stage {
        proxy: Proxy::start_with(options),
        postgres,
    };
    wait_until_ready(http);
    let mut leader = stage.leader("1");
    leader.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    signal(stage.proxy.pid(), Signal::TERM);
    wait_until_not_ready(http, "shutting down");
    assert_eq!(http.metrics().of("pgpalisade_connections_open"), 1.0);
    leader.ok("COMMIT");
    wait_until("its end", || http.connect().is_err());
    assert_eq!(stage.value("SELECT count(*) FROM jobs"), "1");
}

#[test]
fn without_a_control_connection_it_is_not_ready() {
    let mut postgres = Postgres::start();
    let (http, _proxy) = Http::with_proxy(&postgres);
    wait_until_ready(http);
    assert_eq!(http.metrics().of("pgpalisade_control_connection_up"), 1.0);
    postgres.crash();
    wait_until_not_ready(http, "no control connection");
    let metrics = http.metrics();
    assert_eq!(metrics.of("pgpalisade_control_connection_up"), 0.0);
    assert_eq!(metrics.of("pgpalisade_control_connection_lost_total"), 1.0);
    postgres.start_again(&[]);
    wait_until_ready(http);
}

#[test]
fn without_the_authority_it_is_not_ready() {
    let etcd = Etcd::start(1);
    let postgres = Postgres::start();
    let http = Http::free();
    let _proxy = Proxy::start_with(http.options(&postgres).store(etcd.authority()));
    wait_until_ready(http);
    etcd.pause(0);
    wait_until_not_ready(http, "authority");
    let errors = "pgpalisade_authority_errors_total{operation=\"cluster\"}";
    assert!(http.metrics().of(errors) >= 1.0);
    etcd.resume(0);
    wait_until_ready(http);
}

/// Requests without rights learn nothing.
#[test]
fn without_the_token_nothing_is_told() {
    let dir = scratch_dir();
    let file = dir.path().join("token");
    let write = |token: &str, mode: u32| {
        fs::write(&file, token).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    };
    write("a-token-that-nobody-knows\n", 0o600);
    let mut postgres = Postgres::start();
    let http = Http::free();
    // Other machines may reach it.
    let mut options = http.options(&postgres);
    options.flags = vec![
        "--http".to_owned(),
        format!("0.0.0.0:{}", http.port()),
        "--http-token-file".to_owned(),
        file.display().to_string(),
    ];
    let proxy = Proxy::start_with(options);
    let with = |token: &str, path: &str| {
        http.ask("GET", path, &format!("Authorization: Bearer {token}\r\n"))
    };
    let right = "a-token-that-nobody-knows";
    assert_eq!(with(right, "/metrics").status, 200);
    // The page asks for the token, and shows nothing before.
    assert_eq!(http.get("/").status, 200);
    for path in ["/metrics", "/api/v1/picture", "/nothing"] {
        for answer in [http.get(path), with("a-token-that-nobody-knowz", path)] {
            assert_eq!(answer.status, 401, "{answer:?}");
            assert_eq!(answer.body, "a bearer token is needed\n");
            assert!(
                answer.head.contains("www-authenticate: bearer"),
                "{answer:?}"
            );
        }
    }
    // Probes have no token, and see the status.
    assert_eq!(http.get("/healthz").body, "alive\n");
    assert_eq!(http.get("/readyz").body, "ready\n");
    postgres.crash();
    wait_until("the status", || http.get("/readyz").status == 503);
    assert_eq!(http.get("/readyz").body, "not ready\n");
    assert!(
        with(right, "/readyz")
            .body
            .contains("no control connection")
    );
    assert_eq!(with(right, "/api/v1/picture").status, 200);
    // A changed token counts immediately, and a file readable by everybody admits nobody.
    write("another-token-of-the-operator", 0o600);
    assert_eq!(with(right, "/metrics").status, 401);
    let another = "another-token-of-the-operator";
    assert_eq!(with(another, "/metrics").status, 200);
    write(another, 0o644);
    assert_eq!(with(another, "/metrics").status, 401);
    let said = wait_for("the log", || {
        Some(proxy.output()).filter(|said| said.contains("chmod o-rwx"))
    });
    assert!(!said.contains(another), "{said}");
}

#[test]
fn other_machines_need_a_token() {
    let output = subcommand("serve")
        .args(["--upstream", "/nowhere", "--authority", "embedded:/nowhere"])
        .args(["--http", "0.0.0.0:6434"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_says(
        &said,
        "set http_token_file, or http_client_ca, or listen on 127.0.0.1:6434",
    );
}

/// Slow or silent clients delay neither a scrape nor a session, and are closed soon.
#[test]
fn slow_and_silent_clients_hold_nothing_up() {
    let postgres = Postgres::start();
    let http = Http::free();
    let stage = Stage {
        proxy: Proxy::start_with(http.options(&postgres)),
        postgres,
    };
    let mut session = stage.plain();
    let began = Instant::now();
    let mut crowd: Vec<_> = (0..300).map(|_| http.connect().unwrap()).collect();
    for half in crowd.iter_mut().step_by(2) {
        // Connections that were closed to make room.
        let _ = half.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nx: ");
    }
    let asked = Instant::now();
    http.metrics();
    session.ok("SELECT 1");
    assert_eq!(http.get("/readyz").status, 200);
    assert_within(asked, AT_ONCE);
    // The oldest were closed: there is no room for all.
    let mut nothing = [0; 1];
    let first = crowd[0].read(&mut nothing);
    assert!(closed(&first), "{first:?}");
    assert_within(began, Duration::from_secs(5));
    // The last one has timed out.
    let mut last = crowd.pop().unwrap();
    let mut rest = Vec::new();
    let read = last.read_to_end(&mut rest);
    assert!(read.is_ok() || closed(&read), "{read:?}");
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(12), "{waited:?}");
}

/// Whether the connection ended or was reset.
fn closed(read: &std::io::Result<usize>) -> bool {
    match read {
        Ok(count) => *count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}
