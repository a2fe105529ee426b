//! Opening a store: errors within a bound, logins and TLS.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use pgpalisade_authority::etcd::Options;
use pgpalisade_authority::{Authority, AuthorityError, Etcd};
use pgpalisade_test_servers::etcd::{self, Setup, TlsFiles};
use pgpalisade_test_servers::machine;
use pgpalisade_test_servers::machine::assert_says;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::stage::{CLUSTER, connect, connect_to, declare, scope, timed};

const UNREACHABLE: &str = "etcd does not answer: ";

fn with_argument(argument: &str) -> etcd::Etcd {
    let arguments = vec![argument.to_owned()];
    let setup = Setup {
        arguments,
        ..Setup::default()
    };
    etcd::Etcd::start_with(1, setup)
}

fn with_tls(files: &TlsFiles) -> etcd::Etcd {
    let tls = Some(files.clone());
    let setup = Setup {
        tls,
        ..Setup::default()
    };
    etcd::Etcd::start_with(1, setup)
}

/// Where `url` is reached with the files of a client.
fn secured(url: &str, ca: &Path, own: &TlsFiles) -> String {
    let (ca, cert, key) = (ca.display(), own.cert.display(), own.key.display());
    format!("{url}?ca={ca}&cert={cert}&key={key}")
}

/// Comes within 6 s.
async fn open_error(text: &str) -> String {
    let options: Options = text.parse().unwrap();
    let (opened, took) = timed(text, Etcd::connect(options)).await;
    assert!(took < Duration::from_secs(6), "{took:?}");
    let error = opened.expect_err("must not open").to_string();
    println!("{error}");
    error
}

#[tokio::test]
async fn nobody_listens() {
    let (a, b) = (machine::free_port(), machine::free_port());
    let text = format!("http://127.0.0.1:{a},http://127.0.0.1:{b}");
    let error = open_error(&text).await;
    assert_says(&error, UNREACHABLE);
    for port in [a, b] {
        assert_says(&error, &port.to_string());
    }
    assert_says(&error, "Connection refused");
}

#[tokio::test]
async fn somebody_else_listens() {
    // One that never answers, and one that speaks another protocol.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let error = open_error(&url).await;
    assert_says(&error, UNREACHABLE);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", other.local_addr().unwrap());
    std::thread::spawn(move || {
        use std::io::Write as _;
        for stream in other.incoming().take(200) {
            let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.unwrap().write_all(answer);
        }
    });
    let error = open_error(&url).await;
    let is_said = error.contains(UNREACHABLE) || error.contains("this is not etcd 3.4 or later");
    assert!(is_said, "{error}");
}

#[tokio::test]
async fn another_format_and_damage() {
    let etcd = etcd::Etcd::start(1);
    let text = etcd.urls().join(",");
    etcd.ctl(&["put", "/pgpalisade/identity", r#"{"format":4,"more":true}"#]);
    let error = open_error(&text).await;
    assert_says(&error, "the store at /pgpalisade/ has format 4,");
    etcd.ctl(&["put", "/pgpalisade/identity", "?"]);
    let error = open_error(&text).await;
    assert_says(
        &error,
        "choose another prefix, or restore it from a snapshot",
    );
    let other = connect_to(&format!("etcd:{text}?prefix=/other")).await;
    other.enrol(CLUSTER).await.unwrap();
    let keys = etcd.ctl(&["get", "/other/", "--prefix", "--keys-only"]);
    assert!(keys.contains("/other/cluster"), "{keys}");
}

#[tokio::test]
async fn users_and_passwords() {
    let mut etcd = with_argument("--auth-token-ttl=1");
    etcd.ctl(&["user", "add", "nobody:n"]);
    etcd.require_logins();
    let port = etcd.urls()[0].rsplit_once(':').unwrap().1.to_owned();
    let address = format!("127.0.0.1:{port}");
    let dir = tempfile::tempdir().unwrap();
    let as_user = |user: &str, password: &str| {
        let file = dir.path().join(user);
        machine::write_secret(&file, password);
        format!(
            "http://{address}?user={user}&password_file={}",
            file.display()
        )
    };
    for text in [
        as_user("pgpalisade", "wrong-one"),
        as_user("nobody", "n"),
        format!("http://{address}"),
    ] {
        let error = open_error(&text).await;
        assert_says(&error, "etcd refuses: ");
        assert!(!error.contains("wrong-one"), "{error}");
    }
    let store = connect_to(&etcd.authority_with_login()).await;
    store.enrol(CLUSTER).await.unwrap();
    let s = scope("auth");
    declare(&store, &s, 1, 1).await.unwrap();
    // Past the lifetime of its login token.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let (again, took) = timed("after the login has expired", declare(&store, &s, 2, 1)).await;
    again.unwrap();
    assert!(took < Duration::from_secs(1), "{took:?}");
    // The member forgets all logins.
    etcd.restart(0);
    let (again, _) = timed("after a restart", declare(&store, &s, 3, 1)).await;
    again.unwrap();
}

/// Files are read again for each new connection, so that no proxy needs a restart.
#[tokio::test]
async fn another_password() {
    let etcd = etcd::Etcd::start(1);
    etcd.require_logins();
    let store = connect_to(&etcd.authority_with_login()).await;
    store.enrol(CLUSTER).await.unwrap();
    let s = scope("password");
    declare(&store, &s, 1, 1).await.unwrap();
    etcd.write_password("another");
    etcd.change_password("another");
    declare(&store, &s, 2, 1).await.unwrap();
    // In the other order: refused while the file has the old password.
    etcd.change_password("third");
    let refused = declare(&store, &s, 3, 1).await.unwrap_err();
    assert_says(&refused.to_string(), "authentication failed");
    let file = etcd.write_password("third");
    declare(&store, &s, 3, 1).await.unwrap();
    // The error names a file that is missing or readable by everybody.
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    etcd.change_password("fourth");
    let refused = declare(&store, &s, 4, 1).await.unwrap_err().to_string();
    assert_says(&refused, "password can be read or written by everybody");
    etcd.write_password("fourth");
    declare(&store, &s, 4, 1).await.unwrap();
}

#[tokio::test]
async fn other_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let files = certificates(dir.path(), "own");
    let mut etcd = with_tls(&files);
    let url = etcd.urls().remove(0);
    let store = connect_to(&format!("etcd:{}", secured(&url, &files.ca, &files))).await;
    store.enrol(CLUSTER).await.unwrap();
    let s = scope("certificates");
    declare(&store, &s, 1, 1).await.unwrap();
    // From another authority: a client with the old certificates cannot connect.
    certificates(dir.path(), "own");
    etcd.restart(0);
    etcd.wait_until_ready();
    declare(&store, &s, 2, 1).await.unwrap();
}

fn certificates(dir: &Path, name: &str) -> TlsFiles {
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let cert = cert.signed_by(&key, &ca).unwrap();
    let file = |part: &str, text: String| {
        let path = dir.join(format!("{name}-{part}.pem"));
        machine::write_secret(&path, &text);
        path
    };
    TlsFiles {
        ca: file("ca", ca.pem()),
        cert: file("cert", cert.pem()),
        key: file("key", key.serialize_pem()),
    }
}

#[tokio::test]
async fn tls() {
    let dir = tempfile::tempdir().unwrap();
    let good = certificates(dir.path(), "good");
    let other = certificates(dir.path(), "other");
    let etcd = with_tls(&good);
    let url = etcd.urls().remove(0);
    let text = |ca: &Path, own: &TlsFiles| secured(&url, ca, own);
    let store = connect_to(&format!("etcd:{}", text(&good.ca, &good))).await;
    store.enrol(CLUSTER).await.unwrap();
    declare(&store, &scope("tls"), 1, 1).await.unwrap();
    let error = open_error(&text(&other.ca, &good)).await;
    assert_says(&error, "certificate");
    for wrong in [
        text(&good.ca, &other),
        format!("{url}?ca={}", good.ca.display()),
    ] {
        let error = open_error(&wrong).await;
        assert_says(&error, UNREACHABLE);
    }
    let plain = url.replace("https", "http");
    let error = open_error(&plain).await;
    assert_says(&error, UNREACHABLE);
    let missing = dir.path().join("missing.pem");
    let error = open_error(&text(&missing, &good)).await;
    assert_says(&error, "missing.pem");
    std::fs::write(&missing, "no PEM").unwrap();
    let error = open_error(&text(&missing, &good)).await;
    assert_says(&error, "is not PEM");
}

/// Beyond its size limit etcd refuses writes, and the error says what to do.
#[tokio::test]
async fn a_full_etcd() {
    let etcd = with_argument("--quota-backend-bytes=300000");
    let store = connect(&etcd).await;
    let error = loop {
        let name = format!("{:0>200}", rand::random::<u64>());
        match declare(&store, &scope(&name), 1, 1).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AuthorityError::Storage(_)), "{error}");
    assert!(error.to_string().contains("alarm disarm"), "{error}");
    let error = open_error(&etcd.urls().join(",")).await;
    assert!(error.to_string().contains("alarm disarm"), "{error}");
}
