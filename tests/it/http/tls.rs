//! HTTP over TLS: admission by certificate, reloaded files, and clients without a handshake.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::{assert_within, wait_until};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::tls::{Authority, Pair, TlsClient, Validity, reload};

use super::{AT_ONCE, closed};

const HOST: &str = "Host: localhost\r\n";
const TOKEN: &str = "a-token-that-nobody-knows";

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A proxy that presents this certificate, and logs why it has refused one.
fn options(http: Http, postgres: &Postgres, pair: &Pair) -> Options {
    http.options(postgres)
        .flag("--http-certificate", &text(&pair.certificate))
        .flag("--http-key", &text(&pair.key))
        .flag("--log", "info,pgpalisade::http=debug")
}

fn with_token(options: Options, authority: &Authority) -> Options {
    let file = authority.path("token");
    fs::write(&file, TOKEN).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    options.flag("--http-token-file", &text(&file))
}

fn bearer(token: &str) -> String {
    format!("{HOST}Authorization: Bearer {token}\r\n")
}

/// A client that trusts the first authority, and presents a certificate of the second.
fn certified(trusted: &Authority, by: &Authority, validity: Validity) -> TlsClient {
    let own = by.issue("prometheus", &["client"], validity);
    TlsClient::new(&trusted.certificate(), Some(&own)).speaking(&["http/1.1"])
}

/// With a CA alone.
#[test]
fn a_certificate_admits_and_nothing_else_does() {
    let postgres = Postgres::start();
    let authority = Authority::new();
    let http = Http::free();
    let options = options(http, &postgres, &authority.issue_local("proxy"));
    let mut options = options.flag("--http-client-ca", &text(&authority.certificate()));
    // Other machines may reach it.
    options.flags[1] = format!("0.0.0.0:{}", http.port());
    let proxy = Proxy::start_with(options);
    let ours = certified(&authority, &authority, Validity::Now);
    for path in ["/", "/metrics", "/api/v1/sessions"] {
        // By any name: the client has verified the proxy, and may reach it by address.
        let answer = http
            .get_tls(&ours, path, "Host: 10.0.0.5:6434\r\n")
            .unwrap();
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let policy = "cross-origin-resource-policy: same-origin";
        assert!(answer.head.contains(policy), "{path}: {answer:?}");
        for fields in [HOST, &bearer(TOKEN)] {
            let refused = http.get_tls(&authority.client(), path, fields).unwrap();
            assert_eq!(refused.status, 403, "{path}: {refused:?}");
            assert!(refused.body.contains("http_client_ca"), "{refused:?}");
        }
    }
    for probe in [("/healthz", "alive\n"), ("/readyz", "ready\n")] {
        let answer = http.get_tls(&authority.client(), probe.0, HOST).unwrap();
        assert_eq!((answer.status, &*answer.body), (200, probe.1));
    }
    for (by, validity, why) in [
        (&Authority::new(), Validity::Now, "UnknownIssuer"),
        (&authority, Validity::Past, "certificate expired"),
    ] {
        let theirs = certified(&authority, by, validity);
        let refused = http.get_tls(&theirs, "/healthz", HOST);
        assert!(refused.is_err(), "{why}: {refused:?}");
        wait_until(why, || proxy.output().contains(why));
    }
    let other_protocol = ours.speaking(&["h2"]);
    assert!(http.get_tls(&other_protocol, "/metrics", HOST).is_err());
}

#[test]
fn a_certificate_or_the_token() {
    let postgres = Postgres::start();
    let authority = Authority::new();
    let http = Http::free();
    let options = options(http, &postgres, &authority.issue_local("proxy"));
    let options = with_token(options, &authority);
    let with_ca = options
        .clone()
        .flag("--http-client-ca", &text(&authority.certificate()));
    let get = |client: &TlsClient, token: &str| {
        let answer = http
            .get_tls(client, "/api/v1/scopes", &bearer(token))
            .unwrap();
        (answer.status, answer.body)
    };
    let (known, unknown) = (
        certified(&authority, &authority, Validity::Now),
        authority.client(),
    );
    let either = Proxy::start_with(with_ca);
    assert_eq!(get(&unknown, TOKEN).0, 200);
    assert_eq!(get(&known, "another").0, 200);
    let neither = (
        401,
        "a bearer token or a client certificate is needed\n".to_owned(),
    );
    assert_eq!(get(&unknown, "another"), neither);
    // The page asks for the token.
    assert_eq!(http.get_tls(&unknown, "/", HOST).unwrap().status, 200);
    drop(either);
    // Without a CA, no client is asked for a certificate.
    let _token_only = Proxy::start_with(options);
    assert_eq!(get(&unknown, TOKEN).0, 200);
    assert_eq!(get(&known, "another").0, 401);
}

/// TLS alone: this machine may ask, but no page of the Web.
#[test]
fn a_page_of_the_web_is_refused_as_in_the_clear() {
    let postgres = Postgres::start();
    let authority = Authority::new();
    let http = Http::free();
    let _proxy = Proxy::start_with(options(http, &postgres, &authority.issue_local("proxy")));
    for (fields, status) in [(HOST, 200), ("Host: evil.example\r\n", 421)] {
        let answer = http
            .get_tls(&authority.client(), "/api/v1/scopes", fields)
            .unwrap();
        assert_eq!(answer.status, status, "{answer:?}");
    }
}

#[test]
fn new_files_count_from_the_next_connection_on() {
    let postgres = Postgres::start();
    let (first, second) = (Authority::new(), Authority::new());
    let pair = first.issue_local("proxy");
    let ca = first.path("clients.crt");
    fs::copy(first.certificate(), &ca).unwrap();
    let http = Http::free();
    let proxy =
        Proxy::start_with(options(http, &postgres, &pair).flag("--http-client-ca", &text(&ca)));
    let old = certified(&first, &first, Validity::Now);
    let new = certified(&second, &second, Validity::Now);
    let answers = |client: &TlsClient| http.get_tls(client, "/metrics", HOST).is_ok();
    assert!(answers(&old) && !answers(&new));
    // One of them is invalid: none is used.
    fs::copy(second.certificate(), &ca).unwrap();
    fs::write(&pair.certificate, "no certificate").unwrap();
    assert!(reload(&proxy).contains("are not valid"));
    assert!(answers(&old) && !answers(&new));
    let renewed = second.issue_local("proxy");
    fs::copy(renewed.certificate, &pair.certificate).unwrap();
    fs::copy(renewed.key, &pair.key).unwrap();
    assert!(reload(&proxy).contains("were read again"));
    assert!(answers(&new) && !answers(&old));
}

/// Clients without a handshake delay nobody, and are closed soon.
#[test]
fn silent_clients_and_plain_ones_are_closed() {
    let postgres = Postgres::start();
    let authority = Authority::new();
    let http = Http::free();
    let _proxy = Proxy::start_with(options(http, &postgres, &authority.issue_local("proxy")));
    let began = Instant::now();
    let plain = http.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(!plain.unwrap_or_default().contains("HTTP"));
    assert_within(began, AT_ONCE);
    let mut crowd: Vec<_> = (0..100).map(|_| http.connect().unwrap()).collect();
    for half in crowd.iter_mut().step_by(2) {
        // The header of a record without its body. Connections that had to make room are closed already.
        let _ = half.write_all(&[22, 3, 1, 2, 0]);
    }
    let asked = Instant::now();
    let answer = http.get_tls(&authority.client(), "/metrics", HOST).unwrap();
    assert_eq!(answer.status, 200);
    // The oldest was closed, long before its timeout.
    let first = crowd[0].read(&mut [0; 1]);
    assert!(closed(&first), "{first:?}");
    assert_within(asked, AT_ONCE);
    for last in crowd.iter_mut().rev().take(2) {
        let read = last.read_to_end(&mut Vec::new());
        assert!(read.is_ok() || closed(&read), "{read:?}");
    }
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(8), "{waited:?}");
}
